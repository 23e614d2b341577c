// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package withplugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// The reference's plugins, daemon and library made a container. Our programs take over: our
// keeper requests the container's lease, and our plugins check and detach the container.
func TestTakeOver(t *testing.T) {
	p := newPrograms(t)
	dhcptest.Unplug(t, p.ns) // the bridge plugin makes its own
	conf, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0","ipam":{"type":"dhcp"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	rt := &libcni.RuntimeConf{ContainerID: "c9", NetNS: p.ns, IfName: "eth0"}
	daemon := exec.Command(reference(t), "daemon", resend)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfig([]string{filepath.Dir(reference(t))}, nil)
	dhcptest.Eventually(t, "the daemon listens", func() bool { _, err := os.Stat(dhcprpc.DefaultSocket); return err == nil })
	if _, err := cni.AddNetworkList(t.Context(), conf, rt); err != nil {
		t.Fatal(err)
	}
	before := dhcptest.Addrs(t, p.ns)
	_ = daemon.Process.Kill()
	_ = daemon.Wait()

	log := p.start(exec.Command(filepath.Join(p.dir, "patchbayd"), "dhcp"))
	dhcptest.Eventually(t, "our keeper takes over", func() bool { return strings.Contains(log.String(), "lease acquired") })
	if after := dhcptest.Addrs(t, p.ns); len(after) != 1 || after[0] != before[0] {
		t.Errorf("%v, before %v", after, before)
	}
	ours := libcni.NewCNIConfig([]string{p.dir}, nil)
	if err := ours.CheckNetworkList(t.Context(), conf, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := ours.DelNetworkList(t.Context(), conf, rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if !strings.Contains(log.String(), "releasing DHCPv4 lease") {
		t.Errorf("the keeper at %s: %s", dhcprpc.DefaultSocket, log)
	}
}
