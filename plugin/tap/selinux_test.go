// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const label = "system_u:system_r:container_t:s0:c1,c2"

// labels makes a procfs and a sysfs as on a node with SELinux. It returns the file from which the
// kernel would read the label of the next program.
func labels(t *testing.T, s *plugin.Session) (exec string) {
	t.Helper()
	s.Paths.Proc, s.Paths.Sys, s.Self = t.TempDir(), t.TempDir(), plugin.SelfPath
	exec = filepath.Join(s.Paths.Proc, "thread-self/attr/exec")
	for _, path := range []string{exec, filepath.Join(s.Paths.Sys, "fs/selinux/enforce")} {
		endpointtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		endpointtest.Must(t, os.WriteFile(path, nil, 0o644))
	}
	return exec
}

// Another process makes the tap in the container. The tap works like any other.
func TestSELinux(t *testing.T) {
	nettest.Need(t, nettest.Tun())
	ns := nettest.NewNS(t, "selinux")
	exec := ""
	inv := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		exec = labels(t, s)
		return s
	}}
	call := &spec.Call{
		Verb: spec.Add, ContainerID: "selinux", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: []byte(`{"cniVersion": "1.1.0", "name": "net", "type": "tap", "mtu": 1400, "mac": "` + mac + `", "owner": 7,
			"multiQueue": true, "selinuxContext": "` + label + `"}`),
	}
	_, err := inv.Invoke(t.Context(), "tap", call)
	endpointtest.Must(t, err)
	open, err := netns.Open(ns)
	endpointtest.Must(t, err)
	conn, err := nl.In(open, "/proc")
	endpointtest.Must(t, err)
	t.Cleanup(conn.Close)
	link, err := conn.Link("eth0")
	endpointtest.Must(t, err)
	tap := link.(*netlink.Tuntap)
	if tap.Owner != 7 || tap.MTU != 1400 || tap.HardwareAddr.String() != mac || tap.Flags&netlink.TUNTAP_MULTI_QUEUE == 0 {
		t.Errorf("%+v", tap)
	}
	if got, err := os.ReadFile(exec); err != nil || string(got) != "\n"+label[1:] { // the second write starts at the beginning of the file
		t.Errorf("label: %q, %v", got, err)
	}
	call.Verb = spec.Del
	_, err = inv.Invoke(t.Context(), "tap", call)
	endpointtest.Must(t, err)
	if _, err := conn.Link("eth0"); !nl.IsNotFound(err) {
		t.Error("the tap is still there:", err)
	}
}

// Errors with a label are reported, and nothing is left.
func TestSELinuxFails(t *testing.T) {
	nettest.Need(t, nettest.Tun())
	ns := nettest.NewNS(t, "selinux")
	for text, spoil := range map[string]func(s *plugin.Session) error{
		"SELinux is not enabled": func(s *plugin.Session) error { return os.RemoveAll(s.Paths.Sys) },
		"install it as one":      func(s *plugin.Session) error { s.Self = ""; return nil },
		"exit status 1":          func(s *plugin.Session) error { s.Self = "/bin/false"; return nil },
		"failed set socket label": func(s *plugin.Session) error {
			return os.Remove(filepath.Join(s.Paths.Proc, "thread-self/attr/exec"))
		},
	} {
		inv := plugin.Builtin{NewSession: func() *plugin.Session {
			s := plugin.NewSession([]*plugin.Plugin{&Plugin})
			labels(t, s)
			endpointtest.Must(t, spoil(s))
			return s
		}}
		w := &endpointtest.World{T: t}
		_, err := inv.Invoke(t.Context(), "tap", &spec.Call{
			Verb: spec.Add, ContainerID: "selinux", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
			Config: []byte(`{"cniVersion": "1.1.0", "name": "net", "type": "tap", "selinuxContext": "` + label + `"}`),
		})
		w.Fails(err, text)
	}
	w := &endpointtest.World{T: t}
	for _, args := range [][]string{nil, {"{"}, {`{"Name": "a name that is too long"}`}} {
		if err := helper(args); err == nil {
			w.Errorf("helper %q succeeds", args)
		}
	}
}
