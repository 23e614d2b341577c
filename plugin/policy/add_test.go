// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// A pod is closed in the directions in which a policy of its namespace may select it, and DEL opens its
// addresses. The record names the pod of the addresses, also if nothing is closed.
func TestAdd(t *testing.T) {
	for _, c := range []struct {
		name, args string
		policies   []string
		in, out    bool
	}{
		{"no policy", podWeb, nil, false, false},
		{"both directions", podWeb, []string{isolate}, true, true},
		{"ingress", podWeb, []string{ingress}, true, false},
		{"another namespace", podBank, []string{isolate}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := fresh(t)
			writeMirror(t, c.policies...)
			a, _ := routed(t, n, "c1", c.args, "10.90.0.5/32", "fd90::5/128")
			a.must(t, spec.Add)
			closedAt(t, "10.90.0.5", c.in, c.out)
			closedAt(t, "fd90::5", c.in, c.out)
			if based := strings.Contains(ruleset(t), "chain policy_egress"); based != (c.in || c.out) {
				t.Errorf("there are base chains: %v\n%s", based, ruleset(t))
			}
			for _, element := range []string{`"vc1" comment`, `"vc1" . 10.90.0.5 comment`, `"vc1" . fd90::5 comment`} {
				if !strings.Contains(ruleset(t), element) {
					t.Errorf("the sources of the pod are not checked: no %s in\n%s", element, ruleset(t))
				}
			}
			a.must(t, spec.Check)
			rec := recordOf(t, "c1")
			ns, pod, _ := strings.Cut(rec.Pod, "/")
			want := &record.Policed{Namespace: ns, Name: pod, UID: c.args[len(c.args)-2:], Link: "vc1", Checked: true, Addrs: []netip.Addr{netip.MustParseAddr("10.90.0.5"), netip.MustParseAddr("fd90::5")}}
			if ns == "" || !reflect.DeepEqual(rec.Policed, want) {
				t.Errorf("the record of %q has %+v", rec.Pod, rec.Policed)
			}
			a.del(t)
			closedAt(t, "10.90.0.5", false, false)
			closedAt(t, "fd90::5", false, false)
			if strings.Contains(ruleset(t), "vc1") {
				t.Errorf("DEL left\n%s", ruleset(t))
			}
			if rec := recordOf(t, "c1"); rec != nil {
				t.Errorf("DEL left %+v", rec)
			}
			a.del(t)
		})
	}
}

// A container that is not a pod has the policies of the namespace in its configuration, or none.
func TestNotAPod(t *testing.T) {
	for _, args := range []string{"", "IgnoreUnknown=1;K8S_POD_NAME=pm"} { // the second is Podman's
		t.Run(args, func(t *testing.T) { notAPod(t, args) })
	}
}

func notAPod(t *testing.T, args string) {
	n := fresh(t)
	writeMirror(t, isolate)
	a, _ := routed(t, n, "c1", args, "10.90.0.5/32")
	a.must(t, spec.Add)
	if rec := recordOf(t, "c1"); rec == nil || rec.Policed != nil || rec.Sends == nil || rec.Sends.Link != "vc1" {
		t.Errorf("policies apply to nobody, and the container may send as a pod: %+v", rec)
	}
	a.must(t, spec.Check)
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // committed
	checked := func() int {
		list, err := enforce.ClosedBy(fw, string(owner.Of("net", "c1", "eth0")))
		must(t, err)
		return len(list)
	}
	closedAt(t, "10.90.0.5", false, false)
	if n := checked(); n != 3 {
		t.Errorf("its sources are checked by %d elements", n)
	}
	must(t, exec.Command("nft", "delete", "table", "inet", "patchbay").Run())
	if what, err := Restore(t.Context(), paths.Default(), fw, recordOf(t, "c1")); err != nil || len(what) != 1 || checked() != 3 {
		t.Errorf("repair restored %q, %v", what, err)
	}
	a.del(t)
	if n := checked(); n != 0 {
		t.Errorf("DEL left %d elements", n)
	}
	must(t, a.call(t, spec.Add, `{"namespace": "shop", "labels": {"app": "web"}}`))
	closedAt(t, "10.90.0.5", true, true)
	if p := recordOf(t, "c1").Policed; p == nil || p.Name != "c1" || p.Labels["app"] != "web" {
		t.Errorf("got %+v", p)
	}
	a.del(t)
	a.args = podBank // the labels of a pod come from the API only
	must(t, a.call(t, spec.Add, `{"namespace": "shop", "labels": {"app": "web"}}`))
	closedAt(t, "10.90.0.5", false, false)
	if p := recordOf(t, "c1").Policed; p == nil || p.Namespace != "bank" || p.Labels != nil {
		t.Errorf("got %+v", p)
	}
	a.del(t)
}

// If the agent's file cannot be used, the pod is closed, and the error says why.
func TestDamagedMirror(t *testing.T) {
	n := fresh(t)
	writeMirror(t)
	path := filepath.Join(paths.Default().State, "node/policy/namespaces/shop")
	must(t, os.WriteFile(path, []byte("open\n"), 0o600))
	a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	a.must(t, spec.Add)
	closedAt(t, "10.90.0.5", true, true)
	if !strings.Contains(a.stderr.String(), path) {
		t.Errorf("the log says %q", a.stderr.String())
	}
	a.del(t)
}

// ADD fails where policies would have no effect.
func TestRefused(t *testing.T) {
	n := fresh(t)
	writeMirror(t, isolate)
	a, c := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	n.BridgeNetfilter(false)
	b := n.Bridge("cni0", "10.91.0.1/24").Container("c2", "10.91.0.5/24")
	for want, prev := range map[string]*spec.Result{
		"assigned none":                resultOf("vc1", c.Path),
		"no interface on the host":     {Interfaces: []spec.Interface{{Name: "eth0", Sandbox: c.Path}}, IPs: a.prev.IPs},
		"modprobe br_netfilter":        b.Result(),
		"look whether packets of none": resultOf("none", c.Path, "10.90.0.5/32"),
	} {
		bad := &attachment{id: "c3", args: podWeb, netns: c.Path, prev: prev}
		if err := bad.call(t, spec.Add, `{}`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if rec := recordOf(t, "c3"); rec != nil {
			t.Errorf("%s: there is a record", want)
		}
	}
	bridged := of(b)
	n.BridgeNetfilter(true)
	records, fact := record.New(paths.Default().Run), record.Fact{Name: record.FastPathFact("cni0")}
	must(t, records.Hold(t.Context(), fact, "abcdefghijklmno", nil))
	if err := bridged.call(t, spec.Add, `{}`); err == nil || !strings.Contains(err.Error(), "take the fast path") {
		t.Errorf("on a bridge with a fast path: %v", err)
	}
	must(t, records.Release(t.Context(), fact.Name, "abcdefghijklmno", func(record.Fact) error { return nil }))
	bridged.fault = func(step string) error { // while this ADD runs, another network's ADD makes the fast path
		if step != "record policy" {
			return nil
		}
		return records.Hold(t.Context(), fact, "abcdefghijklmno", nil)
	}
	if err := bridged.call(t, spec.Add, `{}`); err == nil || !strings.Contains(err.Error(), "take the fast path") || recordOf(t, "c2") != nil {
		t.Errorf("beside the ADD that makes the fast path: %v", err)
	}
	bridged.fault = nil
	must(t, records.Release(t.Context(), fact.Name, "abcdefghijklmno", func(record.Fact) error { return nil }))
	bridged.must(t, spec.Add)
	closedAt(t, "10.91.0.5", true, true)
	bridged.must(t, spec.Check)
	bridged.del(t)
}

// If no agent runs, an ADD removes a former pod with its address from the last program's objects. If an
// agent runs, it leaves that to the agent.
func TestStale(t *testing.T) {
	n := fresh(t)
	lock := mirror.InForce(paths.Default())
	for _, runs := range []bool{true, false} {
		s := stateWith(t, `bank/b {"podSelector":{}}`)
		s.Pods = []rules.Pod{{Namespace: "bank", Name: "former", Node: "n1", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("10.90.0.5")}}}
		fw := nft.Open(t.TempDir())
		e := enforce.New(fw, enforce.Options{KeepConnections: true})
		must(t, e.Load(t.Context(), rules.Compile(s), nil))
		writeMirror(t, `bank/b {"podSelector":{}}`)
		unlock := func() {}
		if runs {
			var err error
			unlock, err = durable.Lock(t.Context(), lock)
			must(t, err)
		}
		a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
		a.must(t, spec.Add)
		if judged := strings.Contains(ruleset(t), `10.90.0.5 comment "bank/former" : goto`); judged != runs {
			t.Errorf("an agent runs: %v, the kernel has the former pod: %v", runs, judged)
		}
		unlock()
		a.del(t)
		n.Host.Delete("vc1")
		must(t, e.Clear(t.Context()))
		must(t, fw.Close())
	}
}

// A second ADD of an attachment may have other addresses. DEL opens all of them.
func TestAddAgain(t *testing.T) {
	n := fresh(t)
	writeMirror(t, isolate)
	a, c := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	a.must(t, spec.Add)
	a.prev = resultOf("vc1", c.Path, "10.90.0.6/32")
	a.must(t, spec.Add)
	closedAt(t, "10.90.0.6", true, true)
	if p := recordOf(t, "c1").Policed; len(p.Addrs) != 1 || len(p.Former) != 1 {
		t.Errorf("got %+v", p)
	}
	a.del(t)
	closedAt(t, "10.90.0.5", false, false)
	closedAt(t, "10.90.0.6", false, false)
}

// explain says what an ADD would close, and changes nothing.
func TestExplain(t *testing.T) {
	n := fresh(t)
	writeMirror(t, ingress)
	a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	var lines []string
	a.dry = func(line string) { lines = append(lines, line) }
	before := ruleset(t)
	a.must(t, spec.Add)
	want := "host: firewall: no new connection to 10.90.0.5 of shop/web-1 until its network policies are enforced"
	if len(lines) != 1 || lines[0] != want {
		t.Errorf("got %q", lines)
	}
	if ruleset(t) != before || recordOf(t, "c1") != nil {
		t.Error("explain changed something")
	}
}

// CHECK and Restore agree about what is open. What the agent opened stays open.
func TestCheckAndRestore(t *testing.T) {
	n := fresh(t)
	writeMirror(t, isolate)
	a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	a.must(t, spec.Add)
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // a test
	rec := recordOf(t, "c1")
	restore := func() []string {
		got, err := Restore(t.Context(), paths.Default(), fw, rec)
		must(t, err)
		return got
	}
	nftDo(t, "flush set inet patchbay "+nft.SetClosedIn4)
	if err := a.call(t, spec.Check, `{}`); err == nil || !strings.Contains(err.Error(), "ingress of 10.90.0.5 is neither closed nor enforced") {
		t.Errorf("CHECK got %v", err)
	}
	if got := restore(); len(got) != 1 {
		t.Errorf("Restore got %q", got)
	}
	a.must(t, spec.Check)
	nftDo(t, "flush ruleset")
	if got := restore(); len(got) != 6 {
		t.Errorf("after a flush, Restore got %q", got)
	}
	a.must(t, spec.Check)
	nftDo(t, "flush set inet patchbay "+nft.SetSource4)
	if err := a.call(t, spec.Check, `{}`); err == nil || !strings.Contains(err.Error(), "the check of the sources of its packets lacks") {
		t.Errorf("CHECK got %v", err)
	}
	if got := restore(); len(got) != 1 {
		t.Errorf("Restore of the check of sources got %q", got)
	}
	a.must(t, spec.Check)
	s := stateWith(t, isolate)
	s.Pods = []rules.Pod{{Namespace: "shop", Name: "web-1", UID: "42", Node: "n1", Phase: "Running", Addresses: rec.Policed.Addrs}}
	e := enforce.New(fw, enforce.Options{KeepConnections: true})
	must(t, e.Load(t.Context(), rules.Compile(s), map[netip.Addr]owner.Key{rec.Policed.Addrs[0]: rec.Owner}))
	closedAt(t, "10.90.0.5", false, false)
	a.must(t, spec.Check)
	if got := restore(); len(got) > 0 {
		t.Errorf("the agent judges the pod, and Restore got %q", got)
	}
	closedAt(t, "10.90.0.5", false, false)
	a.del(t)
}

// Without a record, or with a broken one, DEL and GC find what the owner closed.
func TestLostRecord(t *testing.T) {
	n := fresh(t)
	writeMirror(t, isolate)
	path := filepath.Join(paths.Default().Run, "attachments/net", string(owner.Of("net", "c1", "eth0"))+".policy")
	for name, harm := range map[string]func(string) error{
		"gone": os.Remove, "torn": func(path string) error { return os.Truncate(path, 9) },
	} {
		for verb, call := range map[string]func(*attachment){
			"DEL": func(a *attachment) { a.del(t) },
			"GC":  func(*attachment) { must(t, (&attachment{}).call(t, spec.GC, `{"cni.dev/valid-attachments": []}`)) },
		} {
			a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
			a.must(t, spec.Add)
			must(t, harm(path))
			n.Host.Delete("vc1")
			call(a)
			closedAt(t, "10.90.0.5", false, false)
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s, %s: the record is still there", name, verb)
			}
		}
	}
}

// GC keeps what is valid.
func TestGC(t *testing.T) {
	n := fresh(t)
	writeMirror(t, isolate)
	a, _ := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	b, _ := routed(t, n, "c2", podWeb, "10.90.0.6/32")
	a.must(t, spec.Add)
	b.must(t, spec.Add)
	must(t, (&attachment{}).call(t, spec.GC, `{"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]}`))
	closedAt(t, "10.90.0.5", false, false)
	closedAt(t, "10.90.0.6", true, true)
	b.del(t)
}
