// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// runtimeOf calls the plugins of this program in process, and others from path.
func runtimeOf(path ...string) *chain.Runtime {
	p := paths.Default()
	return chain.New(chain.WithPath(append(path, "/nonexistent")...), chain.WithCacheDir(p.CNI), chain.WithRunDir(p.Run), chain.WithInvoker(&plugin.Builtin{NewSession: session}))
}

func session() *plugin.Session {
	s := plugin.NewSession(all.Plugins())
	s.Stderr = io.Discard
	return s
}

func collect(t *testing.T, rt *chain.Runtime, live map[string]bool) *gc.Report {
	t.Helper()
	report, err := gc.Run(context.Background(), gc.Options{
		Paths: paths.Default(), Runtime: rt, NewSession: session, Live: live, Apply: true,
	})
	if err != nil {
		t.Error(err)
	}
	return report
}

func list(t *testing.T, text string) *chain.List {
	t.Helper()
	l, err := chain.ParseList([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// subnet is different in each process: gc looks for addresses in the namespaces of every process,
// and other tests may run at the same time.
var subnet = fmt.Sprintf("10.%d.%d", 128+os.Getpid()/250%120, os.Getpid()%250)

// everything is a network with every plugin that leaves something behind.
var everything = strings.ReplaceAll(`{"cniVersion":"1.0.0","name":"every","plugins":[
	{"type":"bridge","bridge":"gc0","isGateway":true,"ipMasq":true,%s
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.90.0.0/24"}],[{"subnet":"fd90::/64"}]]}},
	{"type":"portmap","capabilities":{"portMappings":true}},
	{"type":"bandwidth","ingressRate":1000000,"ingressBurst":1000000,"egressRate":1000000,"egressBurst":1000000},
	{"type":"firewall"},
	{"type":"tuning","promisc":true}]}`, "10.90.0", subnet)

func ports(i int) map[string]any {
	return map[string]any{"portMappings": []map[string]any{{"hostPort": 8000 + i, "containerPort": 80, "protocol": "tcp"}}}
}

// A container's namespace is gone without a DEL. gc removes what the reference plugins made for
// it: links, rules of either kind, and files. The installed plugins do not matter. Two cases run with
// PATCHBAY_DRAW=all only, because TestAddressAfterPort and TestLegacyRulesOfABusyAttachment make and
// remove the same.
func TestReferenceLeftovers(t *testing.T) {
	ref := reftest.Plugins(t)
	type leftovers struct {
		name, conf, iptables string
		installed            []string
	}
	cases := []leftovers{
		{"iptables-nft, theirs installed", "", "iptables-nft", []string{ref}},
		{"nftables, ours installed", `"ipMasqBackend":"nftables",`, "iptables-nft", nil},
	}
	if draw.All(t) {
		cases = append(cases, leftovers{"iptables-nft, ours installed", "", "iptables-nft", nil},
			leftovers{"iptables-legacy, ours installed", "", "iptables-legacy", nil})
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			useIPTables(t, tc.iptables)
			l := list(t, fmt.Sprintf(everything, tc.conf))
			theirs := runtimeOf(ref)
			warm(t, theirs, l) // makes the chains and a bridge that stay
			before := leak.Must(t)
			path := attach(t, theirs, l, "dead", 1)
			dead := address(t, theirs, "dead")
			if err := netns.Delete(path); err != nil {
				t.Fatal(err)
			}
			alive := attach(t, theirs, l, "alive", 2)
			report := collect(t, runtimeOf(tc.installed...), nil)
			if len(report.Attachments) != 1 || !report.Attachments[0].Removed || report.Alive != 1 {
				t.Errorf("%+v, %d alive", report.Attachments, report.Alive)
			}
			if text := saved(t, tc.iptables); !strings.Contains(text, subnet+".") || strings.Contains(text, dead) {
				t.Errorf("rules of %s:\n%s", dead, text)
			}
			detach(t, theirs, l, "alive", alive)
			leak.NoLeaks(t, before)
		})
	}
}

// gc takes an attachment for dead, but another process works on it. The attachment keeps its
// rules in iptables-legacy. They go when the attachment goes.
func TestLegacyRulesOfABusyAttachment(t *testing.T) {
	useIPTables(t, "iptables-legacy")
	l := list(t, fmt.Sprintf(everything, ""))
	theirs := runtimeOf(reftest.Plugins(t))
	warm(t, theirs, l)
	before := leak.Must(t)
	path := attach(t, theirs, l, "busy", 1)
	addr := address(t, theirs, "busy")
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	rules := strings.Count(saved(t, "iptables-legacy"), addr)
	_, err := runtimeOf().Alone(t.Context(), l.Name, "busy", func(func(context.Context, *chain.List, chain.Attachment) error) error {
		if r := collect(t, runtimeOf(), nil); len(r.Attachments) != 1 || r.Attachments[0].State != gc.Unsure || r.Legacy != nil {
			t.Errorf("%+v, %+v", r.Attachments, r.Legacy)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if left := strings.Count(saved(t, "iptables-legacy"), addr); rules == 0 || left != rules {
		t.Errorf("%d rules of %s, %d after gc", rules, addr, left)
	}
	if r := collect(t, runtimeOf(), nil); removed(r) != 1 || strings.Contains(saved(t, "iptables-legacy"), addr) {
		t.Errorf("%+v\n%s", r.Attachments, saved(t, "iptables-legacy"))
	}
	leak.NoLeaks(t, before)
}

// useIPTables makes the reference plugins call one form of iptables.
func useIPTables(t *testing.T, form string) {
	t.Helper()
	nettest.Need(t, nettest.Program(form))
	nettest.Need(t, nettest.Feature{Name: form + " for this user", Probe: func() error {
		if out, err := exec.Command(form, "-t", "nat", "-L").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return exec.Command(form + "-save").Run()
	}})
	dir := t.TempDir()
	for _, v := range [...]string{"", "6"} {
		for _, suffix := range [...]string{"", "-save", "-restore"} {
			to, err := exec.LookPath("ip" + v + strings.TrimPrefix(form, "ip") + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, filepath.Join(dir, "ip"+v+"tables"+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func saved(t *testing.T, form string) string {
	t.Helper()
	out, err := exec.Command(form + "-save").CombinedOutput()
	if err != nil {
		t.Fatalf("%s-save: %v\n%s", form, err, out)
	}
	return string(out)
}

// warm attaches and detaches once. What is left then stays by design.
func warm(t *testing.T, rt *chain.Runtime, l *chain.List) {
	t.Helper()
	detach(t, rt, l, "warm", attach(t, rt, l, "warm", 0))
	collect(t, runtimeOf(), nil) // creates the index of addresses
}

func attach(t *testing.T, rt *chain.Runtime, l *chain.List, id string, i int) (path string) {
	t.Helper()
	path = filepath.Join("/run/netns", id)
	if err := netns.Create(path); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Add(context.Background(), l, chain.Attachment{ContainerID: id, NetNS: path, IfName: "eth0", Capabilities: ports(i)}); err != nil {
		t.Fatal(err)
	}
	return path
}

// address is the IPv4 address of a container, in iptables' notation.
func address(t *testing.T, rt *chain.Runtime, id string) string {
	t.Helper()
	c, err := rt.Cached("every", chain.Attachment{ContainerID: id, IfName: "eth0"})
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	return c.Result.IPs[0].Address.Addr().String() + "/32"
}

func detach(t *testing.T, rt *chain.Runtime, l *chain.List, id, path string) {
	t.Helper()
	if err := rt.Del(context.Background(), l, chain.Attachment{ContainerID: id, NetNS: path, IfName: "eth0"}); err != nil {
		t.Error(err)
	}
	if err := netns.Delete(path); err != nil {
		t.Error(err)
	}
}

// The cached result of a reference attachment is lost. Its addresses identify it, and only the
// runtime's list shows that it is dead.
func TestLostCache(t *testing.T) {
	useIPTables(t, "iptables-nft")
	l := list(t, fmt.Sprintf(everything, ""))
	theirs := runtimeOf(reftest.Plugins(t))
	warm(t, theirs, l)
	before := leak.Must(t)
	dead, alive := attach(t, theirs, l, "dead", 1), attach(t, theirs, l, "alive", 2)
	if err := os.RemoveAll(filepath.Join(paths.Default().CNI, "results")); err != nil {
		t.Fatal(err)
	}
	if err := netns.Delete(dead); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, runtimeOf(), nil); r.Dead() != 0 || removed(r) != 0 || len(r.Attachments) != 2 {
		t.Errorf("without a list: %d dead, %d removed, %d shown", r.Dead(), removed(r), len(r.Attachments))
	}
	if r := collect(t, runtimeOf(), map[string]bool{}); removed(r) != 1 {
		t.Errorf("with a list that lacks both, of which one uses its address: %d removed; %s, %s", removed(r), r.Attachments[0].Why, r.Attachments[1].Why)
	}
	detach(t, theirs, l, "alive", alive)
	for range 3 { // the first gc notes what it sees, the second removes, and the third drops the notes
		collect(t, runtimeOf(), map[string]bool{})
		age(t)
	}
	leak.NoLeaks(t, before)
}

// age makes gc's first sightings an hour older.
func age(t *testing.T) {
	t.Helper()
	path := filepath.Join(paths.Default().Run, "gc-seen.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	seen := make(map[string]time.Time)
	if err == nil {
		err = json.Unmarshal(text, &seen)
	}
	for o, at := range seen {
		seen[o] = at.Add(-time.Hour)
	}
	if err == nil {
		text, err = json.Marshal(seen)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func removed(r *gc.Report) (n int) {
	for _, a := range r.Attachments {
		if a.Removed {
			n++
		}
	}
	return n
}

// The namespace of a lease is gone, and its keeper does not run any more.
func TestLease(t *testing.T) {
	dead, alive := owner.Of("lan", "dead", "eth0"), owner.Of("lan", "alive", "eth0")
	run := paths.Default().Run
	if err := os.MkdirAll(filepath.Join(run, dhcprpc.LeaseDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for id, o := range map[string]owner.Key{"dead": dead, "alive": alive} {
		text := fmt.Sprintf(`{"schema":1,"owner":%q,"network":"lan","containerID":%q,"ifname":"eth0","place":{"netns":"/run/netns/%s"}}`, o, id, id)
		if err := os.WriteFile(dhcprpc.LeaseFile(run, o), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nettest.NewNS(t, "alive")
	if r := collect(t, runtimeOf(), nil); removed(r) != 1 || r.Alive != 1 {
		t.Errorf("%+v, %d alive", r.Attachments, r.Alive)
	}
	if _, err := os.Stat(dhcprpc.LeaseFile(run, dead)); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the dead one's lease: ", err)
	}
	if err := os.Remove(dhcprpc.LeaseFile(run, alive)); err != nil {
		t.Error("the living one's lease: ", err)
	}
}

// The run directory is lost with everything in it, and then the containers. When no attachment
// can need the networks' firewall elements, gc removes them.
func TestLostRunDirectory(t *testing.T) {
	l := list(t, fmt.Sprintf(everything, ""))
	rt := runtimeOf()
	warm(t, rt, l)
	before := leak.Must(t)
	path := attach(t, rt, l, "c1", 1)
	for _, dir := range []string{"attachments", "shared"} {
		if err := os.RemoveAll(filepath.Join(paths.Default().Run, dir)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if r := collect(t, rt, nil); r.Alive != 1 || removed(r) != 0 {
			t.Errorf("of a living container: %+v", r.Attachments)
		}
		age(t)
	}
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		collect(t, rt, nil)
		age(t)
	}
	leak.NoLeaks(t, before)
}

// Only an open file holds the namespace of a bridge port's peer. gc reports the port and never
// removes it.
func TestDanglingVeth(t *testing.T) {
	l := list(t, `{"cniVersion":"1.0.0","name":"held","plugins":[{"type":"bridge","bridge":"gc1",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.91.0.0/24"}]]}}]}`)
	theirs := runtimeOf(reftest.Plugins(t))
	path := attach(t, theirs, l, "held", 1)
	if r := collect(t, runtimeOf(), nil); len(r.Stray) != 0 {
		t.Errorf("of a living container: %+v", r.Stray[0])
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // a test
	if err := theirs.Del(context.Background(), l, chain.Attachment{ContainerID: "held", IfName: "eth0"}); err != nil {
		t.Error(err) // without the namespace, the reference's DEL leaves the veth pair
	}
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	r := collect(t, runtimeOf(), nil)
	if len(r.Stray) != 1 || r.Stray[0].State != gc.Unsure || r.Stray[0].Objects[0].Kind != "link" {
		t.Fatalf("%+v", r.Stray)
	}
	if _, err := netlink.LinkByName(r.Stray[0].Objects[0].Name); err != nil {
		t.Error(err)
	}
}
