// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestResolve(t *testing.T) {
	for _, tc := range []struct{ key, ifName, want, err string }{
		{"net.ipv4.conf.all.arp_notify", "eth0", "net/ipv4/conf/all/arp_notify", ""},
		{"net.ipv4.conf.IFNAME.arp_notify", "eth0", "net/ipv4/conf/eth0/arp_notify", ""},
		{"net.ipv4.conf.IFNAME.arp_notify", "eth0.5", "net/ipv4/conf/eth0.5/arp_notify", ""},
		{"net/ipv4/conf/eth0.5/arp_notify", "eth0", "net/ipv4/conf/eth0.5/arp_notify", ""},
		{"net.ipv4.conf.eth0/5.arp_notify", "eth0", "net/ipv4/conf/eth0.5/arp_notify", ""},
		{"/net/ipv4/ip_forward", "eth0", "net/ipv4/ip_forward", ""},
		{"kernel.hostname", "eth0", "", "invalid net sysctl key: \"kernel.hostname\""},
		{"net/../kernel/hostname", "eth0", "", "invalid net sysctl key"},
		{"net/ipv4/conf/IFNAME/../../ip_forward", "eth0", "", "invalid net sysctl key"}, // below net, but past an allow list
		{"net.ipv4.conf.IFNAME.//.ip_forward", "eth0", "", "invalid net sysctl key"},
		{"net", "eth0", "", "invalid net sysctl key"},
		{"", "eth0", "", "invalid net sysctl key"},
	} {
		got, err := resolve(tc.key, tc.ifName)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("resolve(%q, %q) = %q, %v; want %q, %q", tc.key, tc.ifName, got, err, tc.want, tc.err)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("net.ipv4.conf.IFNAME.x", "eth0")
	f.Add("net/../../etc/passwd", "..")
	f.Fuzz(func(t *testing.T, key, ifName string) {
		if spec.ValidateIfName(ifName) != nil {
			return
		}
		got, err := resolve(key, ifName)
		if err == nil && (!strings.HasPrefix(got, "net/") || strings.Contains(got, "..") && filepath.Clean(got) != got) {
			t.Errorf("resolve(%q, %q) leads to %q", key, ifName, got)
		}
	})
}

// world is a container with a veth whose other end is in this namespace.
type world struct {
	t        *testing.T
	ns, data string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, ns: nettest.NewNS(t, "tuning"), data: t.TempDir()}
	ns, err := netns.Open(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "hostend"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.LinkDel(veth) }) //nolint:errcheck // may be gone
	return w
}

func (w *world) inside() *nl.Conn {
	w.t.Helper()
	ns, err := netns.Open(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := nl.In(ns, "/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

func (w *world) link() *netlink.LinkAttrs {
	w.t.Helper()
	l, err := w.inside().Link("eth0")
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Attrs()
}

type options struct {
	args  string
	netns string
	fault func(string) error

	warned io.Writer
}

func (w *world) call(verb spec.Verb, conf string, o options) (*spec.Result, error) {
	w.t.Helper()
	raw := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"tuning","dataDir":%q,
		"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"00:00:00:00:00:01","mtu":1500,"sandbox":%q}]}%s`,
		w.data, w.ns, conf)
	if o.netns == "" {
		o.netns = w.ns
	}
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Fault = o.fault
		if o.warned != nil {
			s.Stderr = o.warned
		}
		s.Paths.Etc = filepath.Join(w.data, "etc")
		return s
	}}
	call := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: []byte(raw)}
	if verb != spec.GC {
		call.ContainerID, call.NetNS, call.IfName, call.Args = "c1", o.netns, "eth0", o.args
	}
	out, err := b.Invoke(context.Background(), name, call)
	if err != nil || verb != spec.Add {
		return nil, err
	}
	return spec.ParseResult(out, "1.1.0")
}

const everything = `,"sysctl":{"net.ipv4.conf.IFNAME.arp_notify":"1"},"mac":"c2:11:22:33:44:55","promisc":true,"mtu":1400,"txQLen":77,"allmulti":true}`

func TestEverythingAndBack(t *testing.T) {
	w := newWorld(t)
	before := *w.link()
	r, err := w.call(spec.Add, everything, options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Interfaces[0]; got.Mac != "c2:11:22:33:44:55" || got.MTU != 1400 {
		t.Errorf("result %+v: want the new address and MTU", got)
	}
	now := w.link()
	if now.MTU != 1400 || now.TxQLen != 77 || now.Promisc == 0 || now.HardwareAddr.String() != "c2:11:22:33:44:55" {
		t.Errorf("link %+v", now)
	}
	if v, err := w.inside().Sysctl("net/ipv4/conf/eth0/arp_notify"); v != "1" {
		t.Errorf("arp_notify %q, %v", v, err)
	}
	if _, err := w.call(spec.Check, everything, options{}); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if _, err := w.call(spec.Check, strings.Replace(everything, "1400", "1300", 1), options{}); err == nil ||
		!strings.Contains(err.Error(), "Tuning configured MTU of eth0 is 1300, current value is 1400") {
		t.Errorf("CHECK with another MTU: %v", err)
	}
	for range 2 {
		if _, err := w.call(spec.Del, everything, options{}); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	after := w.link()
	if after.MTU != before.MTU || after.TxQLen != before.TxQLen || after.Promisc != 0 || after.HardwareAddr.String() != before.HardwareAddr.String() {
		t.Errorf("DEL left %+v, want %+v", after, before)
	}
	w.nothingLeft()
}

func (w *world) nothingLeft() {
	w.t.Helper()
	left, err := filepath.Glob(filepath.Join(w.data, "*_*"))
	if err != nil || len(left) > 0 {
		w.t.Errorf("left in the data directory: %v, %v", left, err)
	}
	if left, _ := filepath.Glob("/run/patchbay/attachments/*/*"); len(left) > 0 {
		w.t.Errorf("records left: %v", left)
	}
}

// The order of precedence is args.cni, runtimeConfig, CNI_ARGS, configuration.
func TestPrecedence(t *testing.T) {
	for _, tc := range []struct{ conf, args, want string }{
		{`,"mac":"02:00:00:00:00:01"}`, "", "02:00:00:00:00:01"},
		{`,"mac":"02:00:00:00:00:01"}`, "K8S_POD_NAME=x;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"},
		{`,"runtimeConfig":{"Mac":"02:00:00:00:00:03"}}`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:03"},
		{`,"runtimeConfig":{"mac":"02:00:00:00:00:03"},"args":{"cni":{"mac":"02:00:00:00:00:04"}}}`, "", "02:00:00:00:00:04"},
	} {
		w := newWorld(t)
		r, err := w.call(spec.Add, tc.conf, options{args: tc.args})
		if err != nil || r.Interfaces[0].Mac != tc.want {
			t.Errorf("%s with %q: %+v, %v; want %s", tc.conf, tc.args, r, err, tc.want)
		}
		if _, err := w.call(spec.Del, tc.conf, options{}); err != nil {
			t.Error(err)
		}
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hostend"}}); err != nil {
			t.Fatal(err)
		}
		if err := netns.Delete(w.ns); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	if err := os.MkdirAll(filepath.Join(w.data, "etc/tuning"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.data, "etc/tuning/allowlist.conf"), []byte("^net.ipv6\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := *w.link()
	for conf, want := range map[string]string{
		`,"mtu":1400,"sysctl":{"a":"1","a":"2"}}`:                 "duplicated sysctl keys are not allowed",
		`,"mtu":1400,"sysctl":{"net.ipv4.conf.all.x":"1"}}`:       "Sysctl net.ipv4.conf.all.x is not allowed. Only the following sysctls are allowed: [^net.ipv6]",
		`,"mtu":1400,"mac":"zz"}`:                                 "invalid args zz for MAC addr",
		`,"mtu":4294968796}`:                                      "invalid mtu 4294968796",
		`,"mtu":-1}`:                                              "invalid mtu -1",
		`,"mtu":1400,"txQLen":-1}`:                                "invalid txQLen -1",
		`,"mtu":1400,"prevResult":null}`:                          "Required prevResult missing",
		`,"mtu":1400,"sysctl":[1]}`:                               "failed to load netconf",
		`,"mtu":1400,"args":{"cni":{"sysctl":{"kernel.x":"1"}}}}`: "Sysctl kernel.x is not allowed",
	} {
		if _, err := w.call(spec.Add, conf, options{}); err == nil || !strings.Contains(err.Error(), want) || spec.ErrorCode(err) == spec.CodeInternal {
			t.Errorf("%s: %v (code %d), want %q", conf, err, spec.ErrorCode(err), want)
		}
	}
	if now := w.link(); now.MTU != before.MTU {
		t.Errorf("a refused request changed the MTU to %d", now.MTU)
	}
	w.nothingLeft()
}

func TestFaultsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	before := *w.link()
	for n := 1; ; n++ {
		step := 0
		_, err := w.call(spec.Add, everything, options{fault: func(string) error {
			if step++; step == n {
				return errors.New("injected")
			}
			return nil
		}})
		if err == nil {
			if n < 9 {
				t.Errorf("only %d steps: faults are not injected everywhere", n-1)
			}
			return
		}
		now := w.link()
		if now.MTU != before.MTU || now.TxQLen != before.TxQLen || now.Promisc != 0 || now.HardwareAddr.String() != before.HardwareAddr.String() {
			t.Errorf("fault at step %d leaves %+v", n, now)
		}
		if v, _ := w.inside().Sysctl("net/ipv4/conf/eth0/arp_notify"); v != "0" {
			t.Errorf("fault at step %d leaves arp_notify %s", n, v)
		}
		w.nothingLeft()
	}
}

// DEL succeeds with an empty backup, a backup that was cut short, a missing namespace or a
// changed configuration. It leaves no file behind.
func TestDelSurvives(t *testing.T) {
	for name, damage := range map[string]func(w *world) options{
		"empty backup": func(w *world) options { w.write(""); return options{} },
		"torn backup":  func(w *world) options { w.write(`{"mac":"c2:`); return options{} },
		"no namespace": func(*world) options { return options{netns: "/run/netns/never"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if _, err := w.call(spec.Add, everything, options{}); err != nil {
				t.Fatal(err)
			}
			o := damage(w)
			w.data, name = w.data+"/elsewhere", w.data // only the record has the directory
			if _, err := w.call(spec.Del, everything, o); err != nil {
				t.Errorf("DEL: %v", err)
			}
			w.data = name
			w.nothingLeft()
		})
	}
}

func (w *world) write(content string) {
	w.t.Helper()
	if err := os.WriteFile(backupPath(w.data, "c1", "eth0"), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// DEL restores the values from before the first ADD, even if the ADD was repeated with other
// values, or a repeated ADD failed.
func TestAddAgainKeepsTheFirstValues(t *testing.T) {
	w := newWorld(t)
	before := w.link().MTU
	for _, c := range []struct {
		conf  string
		fails bool
	}{{`,"mtu":1400}`, false}, {`,"mtu":1300,"txQLen":50}`, false}, {`,"mtu":1200,"sysctl":{"net.ipv4.conf.IFNAME.never":"1"}}`, true}} {
		if _, err := w.call(spec.Add, c.conf, options{}); (err != nil) != c.fails {
			t.Fatalf("%s: %v", c.conf, err)
		}
	}
	if _, err := w.call(spec.Del, `,"mtu":1200}`, options{}); err != nil {
		t.Fatal(err)
	}
	if l := w.link(); l.MTU != before || l.TxQLen == 50 {
		t.Errorf("after DEL the MTU is %d and the queue %d, want %d and not 50", l.MTU, l.TxQLen, before)
	}
	w.nothingLeft()
}

// A GC that has lost the record finds the backup by what the plugin declares.
func TestBackupIsDeclared(t *testing.T) {
	run := t.TempDir()
	want := backupPath(filepath.Join(run, name), "c_1", "net_1")
	if err := os.MkdirAll(filepath.Dir(want), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := traces.Node{Patterns: []string{filepath.Join(run, Plugin.Files[0])}}
	if got := n.Files(spec.AttachmentKey{ContainerID: "c_1", IfName: "net_1"}); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %s", got, want)
	}
}

func TestGCRemovesBackups(t *testing.T) {
	w := newWorld(t)
	if _, err := w.call(spec.Add, everything, options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(spec.GC, `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]}`, options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(backupPath(w.data, "c1", "eth0")); err != nil {
		t.Fatalf("GC took a valid attachment's backup: %v", err)
	}
	if _, err := w.call(spec.GC, `,"cni.dev/attachments":[]}`, options{}); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
}

// The backup is the reference's file. So each plugin restores what the other saved.
func TestBackupFormat(t *testing.T) {
	w := newWorld(t)
	if _, err := w.call(spec.Add, everything, options{}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(backupPath(w.data, "c1", "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"mac", "promisc", "mtu", "allmulti", "txQLen"} {
		if _, ok := got[key]; !ok {
			t.Errorf("%s lacks %q", data, key)
		}
	}
}
