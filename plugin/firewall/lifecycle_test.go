// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const isolated = `{"ingressPolicy": "isolated"}`

// alone makes one container on a bridge, on a node whose FORWARD drops.
func alone(t *testing.T) (a *attachment, before string) {
	t.Helper()
	nettest.Need(t, nettest.Program("iptables-nft"))
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64").Container("c1", "10.1.0.5/24", "fd00:1::5/64")
	sh(t, "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP")
	return of(c), sh(t, rules)
}

// An ADD that fails at any step leaves nothing.
func TestFaults(t *testing.T) {
	a, before := alone(t)
	faults(t, a, isolated, before)
}

// faults makes an ADD fail at each of its steps.
func faults(t *testing.T, a *attachment, conf, before string) {
	t.Helper()
	var steps []string
	a.fault = func(step string) error { steps = append(steps, step); return nil }
	a.must(t, spec.Add, conf)
	a.del(t)
	if len(steps) < 5 {
		t.Fatalf("only %v", steps)
	}
	for i, at := range steps {
		n := 0
		a.fault = func(string) error {
			if n++; n == i+1 {
				return errors.New("boom")
			}
			return nil
		}
		if err := a.call(t, spec.Add, conf); err == nil {
			t.Fatalf("no failure at %s", at)
		}
		nothingLeft(t, before)
	}
}

func TestGC(t *testing.T) {
	a, before := alone(t)
	b := *a
	b.id = "c2"
	a.must(t, spec.Add, isolated)
	b.must(t, spec.Add, isolated)
	gc := attachment{}
	gc.must(t, spec.GC, `{}`)
	a.must(t, spec.Check, isolated)
	gc.must(t, spec.GC, `{"cni.dev/attachments": [{"containerID": "c2", "ifname": "eth0"}]}`)
	b.must(t, spec.Check, isolated)
	gc.must(t, spec.GC, `{"cni.dev/valid-attachments": []}`)
	nothingLeft(t, before)
}

// CHECK names each missing object. After a flush of the firewall it names all of them.
func TestCheck(t *testing.T) {
	a, _ := alone(t)
	a.must(t, spec.Add, isolated)
	a.must(t, spec.Check, isolated)
	sh(t, "iptables-nft -F CNI-FORWARD")
	if err := a.call(t, spec.Check, isolated); err == nil || !strings.Contains(err.Error(), "accept 10.1.0.0/24") {
		t.Errorf("without the accept: %v", err)
	}
	a.must(t, spec.Add, isolated)
	sh(t, "nft flush set inet patchbay isolation")
	if err := a.call(t, spec.Check, isolated); err == nil || !strings.Contains(err.Error(), "isolation") {
		t.Errorf("without the policy: %v", err)
	}
	sh(t, "nft flush ruleset")
	if err := a.call(t, spec.Check, isolated); err == nil || !strings.Contains(err.Error(), "isolation") {
		t.Errorf("after a flush: %v", err)
	}
	a.del(t)
}

// The record is lost or cannot be read. The facts show what the attachment held.
func TestDelWithoutRecord(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"gone": os.Remove,
		"torn": func(path string) error { return os.Truncate(path, 9) },
	} {
		t.Run(name, func(t *testing.T) {
			a, before := alone(t)
			a.must(t, spec.Add, isolated)
			paths, err := filepath.Glob("/run/patchbay/attachments/net/*.firewall")
			if err != nil || len(paths) != 1 {
				t.Fatalf("%v, %v", paths, err)
			}
			if err := harm(paths[0]); err != nil {
				t.Fatal(err)
			}
			a.del(t)
			nothingLeft(t, before)
		})
	}
}

// Rules that the reference's firewall plugin left name no owner. DEL finds them by the addresses
// in prevResult or in the files of host-local.
func TestReferenceLeftovers(t *testing.T) {
	for name, del := range map[string]func(*testing.T, *attachment){
		"prevResult": func(t *testing.T, a *attachment) { a.must(t, spec.Del, `{}`) },
		"host-local": func(t *testing.T, a *attachment) {
			store := ipam.FileStore{DataDir: "/var/lib/cni/networks", Network: "net"}
			tx, err := store.Begin(t.Context(), ipam.Write)
			if err != nil {
				t.Fatal(err)
			}
			for _, ip := range []string{"10.1.0.5", "fd00:1::5"} {
				if ok, err := tx.Reserve(ipam.Holder{ID: a.id, IfName: "eth0"}, netip.MustParseAddr(ip)); err != nil || !ok {
					t.Fatal(ok, err)
				}
			}
			tx.Close()
			a.del(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := alone(t)
			sh(t, `for i in "iptables-nft 10.1.0" "ip6tables-nft fd00:1:"; do set -- $i
				[ $1 = iptables-nft ] && dot=. || dot=:
				$1 -N CNI-FORWARD; $1 -N CNI-ADMIN
				$1 -I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
				$1 -I CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
				for host in 5 6; do
					$1 -A CNI-FORWARD -d $2$dot$host -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
					$1 -A CNI-FORWARD -s $2$dot$host -j ACCEPT
				done; done`)
			del(t, a)
			got := sh(t, rules)
			for _, gone := range []string{"10.1.0.5/32", "fd00:1::5/128"} {
				if strings.Contains(got, gone) {
					t.Errorf("%s is left:\n%s", gone, got)
				}
			}
			if strings.Count(got, "10.1.0.6/32") != 2 || strings.Count(got, "fd00:1::6/128") != 2 {
				t.Errorf("somebody else's rules are gone:\n%s", got)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	reset(t)
	a := attachment{}
	a.must(t, spec.Status, `{}`)
	if err := a.call(t, spec.Status, `{"ingressPolicy": "x"}`); spec.ErrorCode(err) != spec.CodeInvalidConfig {
		t.Errorf("wrong configuration: %v", err)
	}
	sh(t, `nft "add table inet patchbay; add map inet patchbay schema { type inet_service : inet_service; elements = { 0 : 99 }; }"`)
	err := a.call(t, spec.Status, `{}`)
	if spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "schema 99") {
		t.Errorf("newer table: %v (code %d)", err, spec.ErrorCode(err))
	}
}

// FORWARD of iptables-legacy drops. We cannot change it, and the error says so.
func TestLegacy(t *testing.T) {
	nettest.Need(t, nettest.Feature{Name: "iptables-legacy (CONFIG_IP_NF_FILTER) and its list", Probe: func() error {
		if err := exec.Command("iptables-legacy", "-S", "FORWARD").Run(); err != nil {
			return err
		}
		_, err := os.ReadFile("/proc/thread-self/net/ip_tables_names") // only root can read this file, also in a user namespace
		return err
	}})
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	sh(t, "iptables-legacy -P FORWARD DROP; ip6tables-legacy -P FORWARD ACCEPT")
	t.Cleanup(func() { sh(t, "iptables-legacy -P FORWARD ACCEPT") })
	a := of(c)
	a.must(t, spec.Add, `{}`)
	const says = "chain FORWARD of iptables-legacy drops packets"
	if !strings.Contains(a.stderr.String(), says) {
		t.Errorf("ADD said %q", a.stderr.String())
	}
	err := a.call(t, spec.Status, `{}`)
	if spec.ErrorCode(err) != spec.CodeLimited || !strings.Contains(err.Error(), says) {
		t.Errorf("STATUS: %v (code %d)", err, spec.ErrorCode(err))
	}
	sh(t, "iptables-legacy -P FORWARD ACCEPT")
	a.must(t, spec.Status, `{}`)
	a.del(t)
}

// TestExplain compares the output of `patchbay explain`.
func TestExplain(t *testing.T) {
	reset(t)
	n := node.New(t)
	a := of(n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24"))
	var lines []string
	a.dry = func(line string) { lines = append(lines, line) }
	a.must(t, spec.Add, `{"ingressPolicy": "same-bridge", "iptablesAdminChainName": "MINE"}`)
	want := []string{
		"host: firewall: accept 10.1.0.0/24 on cni0 in iptables-nft filter FORWARD where it drops",
		"host: firewall: keep bridge cni0 apart from other isolated bridges",
		"host: firewall: let bridge cni0 forward to cni0",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("explained:\n%s", got)
	}
	nothingLeft(t, "")
}

func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"backend": "firewalld", "firewalldZone": "home", "iptablesAdminChainName": "MINE", "ingressPolicy": "isolated"}`))
	f.Add([]byte(`{"INGRESSPOLICY": "open", "firewalldZone": "a b"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &plugin.Request{Plugin: &Plugin, Call: &spec.Call{Config: data}}
		_, err := r.Conf()
		if c := plugin.ConfOf[Conf](r); err == nil && (!plainName(c.FirewalldZone) || !plainName(c.IptablesAdminChainName)) {
			t.Errorf("accepted %+v", c)
		}
	})
}
