// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const newPort = `{"hostPort": 8081, "containerPort": 80, "protocol": "tcp"}`

// moved is an attachment with another IPv4 address.
func moved(a *attachment, addr string) *attachment {
	other := *a.prev
	other.IPs = append([]spec.IPConfig{}, other.IPs...)
	for i := range other.IPs {
		if other.IPs[i].Address.Addr().Is4() {
			other.IPs[i].Address = netip.MustParsePrefix(addr)
		}
	}
	return &attachment{network: a.network, id: a.id, ifName: a.ifName, netns: a.netns, prev: &other}
}

// The namespace ended without a DEL. The next ADD removes the ports of the earlier ADD, even if
// it publishes none itself.
func TestAddAgainAfterADeath(t *testing.T) {
	for about, second := range map[string]string{"other port": newPort, "no port": ""} {
		for _, addr := range []string{"", "10.1.0.77/24"} {
			t.Run(about+" "+addr, func(t *testing.T) {
				n, web, _ := world(t)
				a := of(web)
				a.must(t, spec.Add, ports(webPort))
				rewriteNetNS(t, a, "/run/netns/gone")
				b := a
				if addr != "" {
					b = moved(a, addr)
				}
				b.must(t, spec.Add, ports(second))
				expect(t, "old port", n.Client, "tcp", node.Uplink4+":8080", "refused")
				records, err := record.New("/run/patchbay").List("")
				if err != nil || len(records) != 1 {
					t.Fatal(records, err)
				}
				for _, e := range records[0].Elements {
					if strings.Contains(e.String(), "8080") {
						t.Errorf("the record still names %s", e)
					}
				}
				b.del(t)
				nothingLeft(t)
			})
		}
	}
}

// An ADD has the same names as a living attachment. It leaves that attachment alone, and one DEL
// removes both.
func TestAddAgainWhileAlive(t *testing.T) {
	n, web, _ := world(t)
	a := of(web)
	a.must(t, spec.Add, ports(webPort))
	moved(a, "10.1.0.77/24").must(t, spec.Add, ports(newPort))
	expect(t, "first port", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
	a.del(t)
	nothingLeft(t)
}

// An ADD that fails at any step leaves the earlier attachment unchanged.
func TestAddAgainFails(t *testing.T) {
	for _, netns := range []string{"", "/run/netns/gone"} {
		t.Run("netns "+netns, func(t *testing.T) {
			n, web, _ := world(t)
			a := of(web)
			a.must(t, spec.Add, ports(webPort))
			if netns != "" {
				rewriteNetNS(t, a, netns)
			}
			was := elements(t)
			for at := 0; ; at++ {
				step := 0
				b := moved(a, "10.1.0.77/24")
				b.fault = func(string) error {
					if step++; step > at {
						return errors.New("fault")
					}
					return nil
				}
				if b.call(t, spec.Add, ports(newPort)) == nil {
					break
				}
				if now := elements(t); now != was {
					t.Fatalf("failed at step %d: %d elements, were %d", at, now, was)
				}
				expect(t, "first port", n.Client, "tcp", node.Uplink4+":8080", "web "+node.Client4)
			}
			a.del(t)
			nothingLeft(t)
		})
	}
}
