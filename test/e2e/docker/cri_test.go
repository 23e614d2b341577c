// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// sandboxImage is busybox's web server, used as a pod's sandbox.
const sandboxImage = "registry.invalid/httpd:lab"

// containerd is Debian's containerd, which runs beside dockerd. The tests use its CRI, as a kubelet
// does.
type containerd struct {
	*lab.Lab
	client cri.RuntimeServiceClient
}

func newContainerd(l *lab.Lab) *containerd {
	l.Helper()
	dir := l.Dir("ctr")
	socket := dir + "/c.sock"
	l.Write("/etc/cni/containerd.toml", fmt.Sprintf(`
version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = %[2]q
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[3]q
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[4]q
    conf_dir = "/etc/cni/one.d"
`, dir, socket, sandboxImage, l.Plugins))
	program := l.Run("containerd", "-c", "/etc/cni/containerd.toml")
	l.Cleanup(program.Stop)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { conn.Close() })
	c := &containerd{l, cri.NewRuntimeServiceClient(conn)}
	l.Eventually("containerd's network is ready", c.ready)
	c.image(dir, socket)
	return c
}

func (c *containerd) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	got, err := c.client.Status(ctx, &cri.StatusRequest{})
	for _, what := range got.GetStatus().GetConditions() {
		if what.GetType() == cri.NetworkReady {
			return err == nil && what.GetStatus()
		}
	}
	return false
}

// image makes the sandbox image locally, because the lab has no registry.
func (c *containerd) image(dir, socket string) {
	c.Helper()
	if out, err := exec.Command(reftest.Lab(c, "image"), dir+"/i.tar", sandboxImage, `["/bin/httpd","-f","-p","80"]`).CombinedOutput(); err != nil {
		c.Fatalf("%v: %s", err, out)
	}
	c.In("ctr", "-a", socket, "-n", "k8s.io", "images", "import", dir+"/i.tar")
}

// sandbox runs a pod's sandbox with a published port, until end is called or the test ends. pid is
// a process in the sandbox.
func (c *containerd) sandbox(name string, port int32) (pid string, end func()) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cgroup := "patchbay-lab-" + c.Kind + "-" + name
	c.Cleanup(func() { removeCgroups(cgroup) })
	conf := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "lab"},
		LogDirectory: c.Dir("ctr/log"),
		PortMappings: []*cri.PortMapping{{ContainerPort: 80, HostPort: port}},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/" + cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{}},
		},
	}
	made, err := c.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: conf})
	if err != nil {
		c.Fatal(err)
	}
	id := made.GetPodSandboxId()
	got, err := c.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		c.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(got.GetInfo()["info"]), &info); err != nil {
		c.Fatal(err)
	}
	return strconv.Itoa(info.Pid), func() { c.remove(id) }
}

func (c *containerd) remove(id string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		c.Error(err)
	}
	if _, err := c.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		c.Error(err)
	}
}

// removeCgroups removes the empty control groups that runtimes leave behind, in cgroup v1 and v2.
func removeCgroups(name string) {
	for _, top := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		for _, depth := range []string{"/*/*", "/*", ""} {
			dirs, _ := filepath.Glob(top + name + depth)
			for _, dir := range dirs {
				if info, err := os.Lstat(dir); err == nil && info.IsDir() {
					os.Remove(dir)
				}
			}
		}
	}
}
