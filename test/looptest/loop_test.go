// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package looptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// runtime attaches containers: our library, or libcni as containerd and cnitool use it.
type runtime interface {
	add(p *endpointtest.Pod, ports int) error
	check(p *endpointtest.Pod) error
	del(p *endpointtest.Pod) error
	gc() error
}

// list is the network that a runtime runs: the plugin cnm with patchbayd's driver,
// followed by a plugin of patchbay.
func list(name, conf string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"plugins":[
		{"type":"cnm","driver":"patchbay","timeout":50,"capabilities":{"portMappings":true},"keepNetwork":false,%s},{"type":"tuning","mtu":1400}]}`, name, conf)
}

func mappings(port int) map[string]any {
	if port == 0 {
		return nil
	}
	return map[string]any{"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}
}

// own is our runtime library.
type own struct {
	*chain.Runtime
	*chain.List
	t *testing.T
}

func (h *host) own(conf []byte) runtime {
	l, err := chain.ParseList(conf)
	must(h, err)
	p := paths.Default()
	return &own{chain.New(chain.WithPath(h.dirs...), chain.WithCacheDir(p.CNI), chain.WithRunDir(p.Run)), l, h.T}
}

func (r *own) at(p *endpointtest.Pod, port int) chain.Attachment {
	return chain.Attachment{ContainerID: p.Name, NetNS: p.Path, IfName: "eth0", Capabilities: mappings(port)}
}

func (r *own) add(p *endpointtest.Pod, port int) (err error) {
	p.Result, err = r.Add(r.t.Context(), r.List, r.at(p, port))
	return err
}
func (r *own) check(p *endpointtest.Pod) error { return r.Check(r.t.Context(), r.List, r.at(p, 0)) }
func (r *own) del(p *endpointtest.Pod) error   { return r.Del(r.t.Context(), r.List, r.at(p, 0)) }
func (r *own) gc() error                       { return r.GC(r.t.Context(), chain.Keep{List: r.List}) }

// other is libcni.
type other struct {
	*libcni.CNIConfig
	*libcni.NetworkConfigList
	t *testing.T
}

func (h *host) libcni(conf []byte) runtime {
	l, err := libcni.NetworkConfFromBytes(conf)
	must(h, err)
	return &other{libcni.NewCNIConfigWithCacheDir(h.dirs, "/var/lib/cni", nil), l, h.T}
}

func (r *other) at(p *endpointtest.Pod, port int) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.Name, NetNS: p.Path, IfName: "eth0", CapabilityArgs: mappings(port)}
}

func (r *other) add(p *endpointtest.Pod, port int) error {
	out, err := r.AddNetworkList(r.t.Context(), r.NetworkConfigList, r.at(p, port))
	if err != nil {
		return err
	}
	result, err := types100.GetResult(out)
	if err != nil {
		return err
	}
	data, err := json.Marshal(result)
	if err == nil {
		p.Result, err = spec.ParseResult(data, "1.1.0")
	}
	return err
}

func (r *other) check(p *endpointtest.Pod) error {
	return r.CheckNetworkList(r.t.Context(), r.NetworkConfigList, r.at(p, 0))
}

func (r *other) del(p *endpointtest.Pod) error {
	return r.DelNetworkList(r.t.Context(), r.NetworkConfigList, r.at(p, 0))
}

func (r *other) gc() error {
	return r.GCNetworkList(r.t.Context(), r.NetworkConfigList, &libcni.GCArgs{})
}

// TestLoop checks that two containers reach each other through both directions. Sysctls of both
// chains are set, and ports are published. DEL leaves nothing on either side.
func TestLoop(t *testing.T) {
	h := newHost(t)
	pools := `"ipam":{"type":"cnm-ipam","driver":"patchbay","timeout":50,"options":{"cni.network":"podnet"},"pools":[{},{"ipv6":true}],"keepPool":false}`
	n := 0
	for about, conf := range map[string]string{"its addresses": "", "its IPAM's": "," + pools} {
		for by, runtime := range map[string]func([]byte) runtime{"ours": h.own, "libcni": h.libcni} {
			if !draw.All(t) && (about == "its addresses") != (by == "ours") {
				continue // each of them once
			}
			n++
			h.Log(about, "by", by)
			h.live(n, runtime(list(fmt.Sprintf("loop%d", n), `"options":{"cni.network":"podnet"}`+conf)))
		}
	}
}

// live attaches, checks and detaches two containers.
func (h *host) live(n int, r runtime) {
	h.Helper()
	port := 8090 + n
	a, b := h.Pod(fmt.Sprintf("a%d", n), ""), h.Pod(fmt.Sprintf("b%d", n), "")
	must(h, r.add(a, port))
	must(h, r.add(b, 0))
	h.talk(a, b)
	a.Serve("tcp", endpointtest.Join(a.IP(0), "80"))
	h.Want("client to the port", h.Client.Ask("tcp", endpointtest.Join(node.Uplink4, fmt.Sprint(port))), a.Name+" "+node.Client4)
	h.Want("sysctl of the driver's chain", a.ReadSysctl("net/core/somaxconn"), "777")
	h.Want("MTU of the runtime's chain", fmt.Sprint(a.Link("eth0").Attrs().MTU), "1400")
	must(h, r.check(a))
	for _, p := range []*endpointtest.Pod{a, b, b} {
		must(h, r.del(p))
	}
	must(h, r.gc())
	h.nothing(a, b)
}

func (h *host) talk(a, b *endpointtest.Pod) {
	h.Helper()
	h.port++
	for n := range 2 {
		at := endpointtest.Join(b.IP(n), fmt.Sprint(h.port))
		b.Serve("tcp", at)
		h.Want("container to container", a.Ask("tcp", at), b.Name+" "+a.IP(n))
	}
}

// nothing checks that nothing is left of the containers.
func (h *host) nothing(pods ...*endpointtest.Pod) {
	h.Helper()
	for _, p := range pods {
		if _, err := p.Conn().Link("eth0"); !nl.IsNotFound(err) {
			h.Errorf("container %s has its interface: %v", p.Name, err)
		}
	}
	for _, pattern := range []string{
		"/var/lib/cni/networks/podnet/*[.:]*", "/var/lib/cni/results/*", "/var/lib/patchbay/cnm/*/*.json", "/var/lib/patchbay/cnm/attachments/*/*",
		"/var/lib/patchbay/docker/endpoints/*", "/var/lib/patchbay/docker/networks/*", "/var/lib/patchbay/docker/leases/*", "/run/patchbay/attachments/*/*",
	} {
		left, err := filepath.Glob(pattern)
		for _, path := range left {
			if !strings.Contains(path, "last_reserved_ip") {
				data, _ := os.ReadFile(path)
				h.Errorf("left: %s (%v)\n%s", path, err, data)
			}
		}
	}
	links, err := h.HostConn().LinkList()
	must(h, err)
	for _, l := range links {
		if k := l.Type(); k == "veth" && strings.HasPrefix(l.Attrs().Name, "veth") {
			h.Errorf("left: link %s", l.Attrs().Name)
		}
	}
}

// TestKilled kills patchbayd while containers run, and one container ends while it is away.
// Running containers keep their network. When patchbayd is back, the next ADD or GC ends the
// rest.
func TestKilled(t *testing.T) {
	h := newHost(t)
	r := h.own(list("killed", `"options":{"cni.network":"podnet"}`))
	a, b := h.Pod("a", ""), h.Pod("b", "")
	must(t, r.add(a, 0))
	must(t, r.add(b, 0))
	h.kill()
	h.talk(a, b)
	must(t, r.del(a))
	if _, err := a.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Errorf("the container has its interface: %v", err)
	}
	h.start()
	must(t, r.check(b))
	c := h.Pod("c", "")
	must(t, r.add(c, 0)) // also ends a at the driver
	h.talk(c, b)
	must(t, r.del(b))
	must(t, r.del(c))
	must(t, r.gc())
	h.nothing(a, b, c)
}

// TestReboot removes everything but the state on the disk. The first container makes the networks
// of both sides again. A GC removes the container that does not come back.
func TestReboot(t *testing.T) {
	h := newHost(t)
	r := h.own(list("reboot", `"options":{"cni.network":"podnet"}`)).(*own)
	a, lost := h.Pod("a", ""), h.Pod("lost", "")
	must(t, r.add(a, 0))
	must(t, r.add(lost, 0))
	h.reboot(a, lost)
	must(t, r.del(a)) // as kubelet does, which knows it from before the boot
	b := h.Pod("b", "")
	must(t, r.add(a, 0))
	must(t, r.add(b, 0))
	h.talk(a, b)
	must(t, r.check(a))
	keep := chain.Keep{List: r.List, Valid: []spec.AttachmentKey{{ContainerID: "a", IfName: "eth0"}, {ContainerID: "b", IfName: "eth0"}}}
	must(t, r.GC(t.Context(), keep))
	must(t, r.check(b))
	must(t, r.del(a))
	must(t, r.del(b))
	must(t, r.gc())
	h.nothing(a, b, lost)
}

// reboot ends patchbayd and removes what does not survive a boot: links, namespaces and /run. In
// everything else it writes an earlier boot's id.
func (h *host) reboot(pods ...*endpointtest.Pod) {
	h.Helper()
	h.kill()
	for _, p := range pods {
		must(h, p.Conn().LinkDel(p.Link("eth0")))
	}
	links, err := h.HostConn().LinkList()
	must(h, err)
	for _, l := range links {
		if l.Type() == "bridge" {
			must(h, h.HostConn().LinkDel(l))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(h, err)
	for line := range strings.Lines(string(mounts)) {
		if path := strings.Fields(line)[1]; strings.HasPrefix(path, "/run/patchbay/") {
			if err := unix.Unmount(path, unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) { // unmounted with a parent
				must(h, err)
			}
		}
	}
	must(h, os.RemoveAll("/run/patchbay"))
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(h, err)
	must(h, filepath.WalkDir("/var/lib/patchbay", func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(data, bytes.TrimSpace(now)) {
			return err
		}
		return os.WriteFile(path, bytes.ReplaceAll(data, bytes.TrimSpace(now), []byte("another boot")), 0o600)
	}))
	h.start()
}
