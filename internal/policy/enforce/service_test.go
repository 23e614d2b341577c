// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// service has port 80, behind which is port 8080 of shop/b. Its clients are masqueraded, so shop/b
// sees the node's address.
const service = `
table ip service {
	chain in { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 80 dnat to 10.1.1.2:8080; }
	chain out { type nat hook postrouting priority 100; ct status dnat masquerade; }
}
table ip6 service {
	chain in { type nat hook prerouting priority -100; ip6 daddr fd96::1 tcp dport 80 dnat to [fd01::1:2]:8080; }
	chain out { type nat hook postrouting priority 100; ct status dnat masquerade; }
}`

// A connection through a Service is judged by the port and the address of the pod behind it, and by
// the client's address, although the client is masqueraded.
func TestService(t *testing.T) {
	p := newPair(t, Options{})
	p.serve(":8080")
	p.nft(service)
	for _, a := range addrs("10.9.0.1", "fd09::1") {
		l, err := p.node.Link("v1")
		must(t, err)
		must(t, p.node.AddrReplace(l, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
	}
	fromA8080 := strings.ReplaceAll(fromA80, "80}", "8080}")
	for _, c := range []struct {
		name     string
		policies []string
		from     *house
		open     bool
	}{
		{"without policies", nil, p.client, true},
		{"the client may use the pod's port", []string{onB + fromA8080 + "]}"}, p.client, true},
		{"the Service's port is not the pod's", []string{onB + fromA80 + "]}"}, p.client, false},
		{"only another pod may", []string{onB + strings.ReplaceAll(fromA8080, `"a"`, `"c"`) + "]}"}, p.client, false},
		{"the node's addresses may", []string{onB + `{"from":[{"ipBlock":{"cidr":"10.9.0.0/16"}},{"ipBlock":{"cidr":"fd09::/16"}}]}]}`}, p.client, false},
		{"the client may send to the pod's port", []string{onA + strings.ReplaceAll(toPort80s, `80,"endPort":81`, "8080") + "]}"}, p.client, true},
		{"the client may send to the Service's port", []string{onA + toPort80s + "]}"}, p.client, false},
		{"an isolated pod to itself", []string{`shop/none {"podSelector":{},"policyTypes":["Ingress","Egress"]}`}, p.server, true},
		{"to itself, against the tier Admin", []string{denyIngress("Admin")}, p.server, false},
		{"to itself, against the tier Baseline", []string{denyIngress("Baseline")}, p.server, false},
		{"an isolated pod to itself, against the tier Baseline", []string{denyIngress("Baseline"), `shop/none {"podSelector":{}}`}, p.server, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.load(c.policies...)
			for _, addr := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
				if got := p.answers(c.from, addr, c.open); got != c.open {
					t.Errorf("%s answers: %v, want %v", addr, got, c.open)
				}
			}
		})
	}
}

// denyIngress is a policy of a tier that denies all pods everything that pods send.
func denyIngress(tier string) string {
	return `deny {"tier":"` + tier + `","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`
}

// A connection through a Service ends, too, when the policy of the pod behind it changes.
func TestConnectionsOfServices(t *testing.T) {
	p := newPair(t, Options{})
	p.serve(":8080")
	p.nft(service)
	for i, a := range addrs("10.9.0.1", "fd09::1") {
		l, err := p.node.Link("v1")
		must(t, err)
		must(t, p.node.AddrReplace(l, &netlink.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
		p.load(onB + strings.ReplaceAll(fromA80, "80}", "8080}") + "]}")
		conn := p.dial([]string{"10.96.0.1:80", "[fd96::1]:80"}[i])
		if !conn.asks(5 * time.Second) {
			t.Error("the Service does not answer")
		}
		p.load(onB + fromA80 + "]}")
		if conn.asks(silence) {
			t.Error("the connection lives although the policy denies it now")
		}
		must(t, conn.Close())
	}
}

// nft loads a ruleset on the node.
func (p *pair) nft(ruleset string) {
	p.t.Helper()
	nettest.Need(p.t, nettest.Program("nft"))
	must(p.t, p.node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(ruleset)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w\n%s", err, out)
		}
		return nil
	}))
}

// answers reports whether a server answers. If it should not, the wait is short.
func (p *pair) answers(from *house, addr string, should bool) bool {
	if should {
		return p.answersWithin(from, addr, 5*time.Second)
	}
	return p.answersWithin(from, addr, silence)
}

func (p *pair) answersWithin(from *house, addr string, wait time.Duration) bool {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", addr, wait)
		if err != nil {
			return err
		}
		return conn.Close()
	}) == nil
}
