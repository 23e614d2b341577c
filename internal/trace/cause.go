// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package trace

// Cause is why a packet ends. It never changes, because programs read it.
type Cause string

// These are the causes.
const (
	NoRoute      Cause = "no-route"
	BadRoute     Cause = "bad-route" // unreachable, blackhole, prohibit
	LinkDown     Cause = "link-down"
	WrongGateway Cause = "wrong-gateway"
	NoNeighbour  Cause = "no-neighbour"
	Duplicate    Cause = "duplicate-address"
	Forwarding   Cause = "forwarding"
	ReversePath  Cause = "rp-filter"
	Policy       Cause = "policy" // a network policy, or another rule of ours
	Rule         Cause = "rule"   // of another program
	Legacy       Cause = "iptables-legacy"
	Conntrack    Cause = "conntrack-full"
	OwnFirewall  Cause = "container-firewall"
	NotHere      Cause = "not-its-address"
	NoWayBack    Cause = "no-way-back"
	Masquerade   Cause = "no-masquerade"
	Hairpin      Cause = "hairpin"
	NoListener   Cause = "no-listener"
	Silent       Cause = "silent"
	MTU          Cause = "mtu"
	Elsewhere    Cause = "unreachable" // another machine says so
	Unknown      Cause = "unknown"
)

// Evaluated reports whether the evaluation would have found the cause.
func (c Cause) Evaluated() bool {
	switch c {
	case NoRoute, BadRoute, Forwarding, ReversePath, Policy:
		return true
	}
	return false
}
