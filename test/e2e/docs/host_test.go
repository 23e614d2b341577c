// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// host is the machine of the page's reader. A release is unpacked in its working directory, and
// nothing of it is installed.
type host struct {
	*lab.Lab
	work string // the release is in work/bin
	stub string // of systemctl
}

// newHost starts a dockerd without our driver.
func newHost(t *testing.T, name, kind string) *host {
	t.Helper()
	const keeper = "/sys/fs/cgroup/patchbay-dhcp" // a keeper's own cgroup is the machine's
	if _, err := os.Stat(keeper); err != nil {
		t.Cleanup(func() { os.Remove(keeper) })
	}
	l := lab.New(t, lab.Options{Name: name, Kind: kind, Late: true})
	h := &host{Lab: l, work: l.Dir("work"), stub: l.Dir("stub")}
	h.overlay("/usr/local/bin", "/opt", "/etc/systemd/system")
	h.boot(t)
	h.unpack()
	h.Docker("tag", "bb", "busybox")
	return h
}

// overlay makes directories writable, without effect on the machine.
func (h *host) overlay(dirs ...string) {
	h.Helper()
	for _, dir := range dirs {
		own := h.Dir("overlay/" + dir)
		h.In("sh", "-ec", `mkdir -p "$1/up" "$1/work"; mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/up,workdir=$1/work" "$0"`, dir, own)
	}
}

// boot makes the host look as if systemd ran, and puts a stub of systemctl where the real
// one would be found later.
func (h *host) boot(t *testing.T) {
	t.Helper()
	const run = "/run/systemd"
	if err := os.Mkdir(run, 0o755); err == nil { // to mount on
		t.Cleanup(func() { os.Remove(run) })
	}
	h.In("sh", "-ec", "mount -t tmpfs -o mode=755 tmpfs "+run+"; mkdir "+run+"/system")
	h.install("testdata/systemctl", h.stub+"/bin/systemctl")
	// Docker's files are not where the unit expects them, and the default times are too long for the
	// test. A dockerd on a busy machine may take longer than a second between its calls.
	h.write(h.stub+"/args/patchbay-docker.service", "--data-root "+h.DataRoot()+" --docker "+h.docker()+" --grace 5s")
	t.Cleanup(func() {
		_, _ = h.shell("docker ps -aq | xargs -r docker rm -f") // objects of a failed page wait for the driver
		h.Sh(`for f in ` + h.stub + `/*.pid; do [ ! -e $f ] || kill $(cat $f); done`)
		if said, _ := os.ReadFile(h.stub + "/log"); t.Failed() {
			t.Logf("services:\n%s", said)
		}
	})
}

// unpack puts a release into the working directory.
func (h *host) unpack() {
	h.Helper()
	h.install(filepath.Join(h.Plugins, "patchbay"), h.work+"/bin/patchbay")
	h.install(h.Patchbayd, h.work+"/bin/patchbayd")
}

// install copies a program.
func (h *host) install(from, to string) {
	h.Helper()
	data, err := os.ReadFile(from)
	h.must(err)
	h.write(to, string(data))
	h.must(os.Chmod(to, 0o755))
}

func (h *host) write(path, text string) {
	h.Helper()
	h.must(os.MkdirAll(filepath.Dir(path), 0o755))
	h.must(os.WriteFile(path, []byte(text), 0o644))
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// shell runs a reader's command in a new shell.
func (h *host) shell(command string) (printed string, err error) {
	cmd := h.Inside("sh", "-c", `cd "$0"; eval "$1"`, h.work, command)
	path := h.stub + "/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	if h.Kind == "old" { // a newer client refuses some flags to an old daemon
		path = h.stub + "/bin:/usr/bin:/usr/local/bin:/usr/sbin:/sbin:/bin"
	}
	cmd.Env = append(cmd.Env, "PATH="+path, "STUB="+h.stub, "DOCKER_HOST="+h.docker())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// docker is the socket of the dockerd.
func (h *host) docker() string {
	return "unix://" + filepath.Join(filepath.Dir(h.DataRoot()), "docker.sock")
}

// root is the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := reftest.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
