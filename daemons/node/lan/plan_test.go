// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/services"
)

const mySession = "a/1"

// base is a world of two nodes, as a sees it: Services of IPv4 want addresses of one pool.
func base() *World {
	return &World{
		Self: "a", Session: mySession, Now: time.Minute, Classes: Classes{Unclassed: true},
		Pools: ParsePools(map[string]string{"lan": "192.0.2.10-192.0.2.12"}),
		Nodes: []Node{{Name: "a"}, {Name: "b", Reserved: []netip.Prefix{netip.MustParsePrefix("192.0.2.12/32")}}}, Services: map[services.Name]*Service{},
		Ready: map[Key][]string{}, Sessions: map[string]Session{"b/1": {ID: "b/1", Seen: time.Minute, Lasts: Lasts}},
	}
}

func named(name string) services.Name { return services.Name{Namespace: "shop", Name: name} }

func (w *World) with(name string, change func(*Service)) *World {
	s := &Service{Name: named(name), UID: "uid-" + name, Balanced: true, Families: []bool{false}}
	if change != nil {
		change(s)
	}
	w.Services[s.Name] = s
	return w
}

// leased gives a Service an address.
func (w *World) leased(name, addr, holder string) *World {
	w.Leases = append(w.Leases, Holding{Addr: netip.MustParseAddr(addr), Service: named(name), UID: "uid-" + name, Holder: holder, Version: "1"})
	return w
}

func (w *World) change(do func(*World)) *World { do(w); return w }

func requesting(list ...string) func(*Service) {
	return func(s *Service) { s.request(strings.Join(list, ",")) }
}

func status(list ...string) func(*Service) {
	return func(s *Service) {
		for _, a := range list {
			s.Status = append(s.Status, netip.MustParseAddr(a))
		}
	}
}

func both(do ...func(*Service)) func(*Service) {
	return func(s *Service) {
		for _, d := range do {
			d(s)
		}
	}
}

// told is a plan in words, as if the node had waited for its turns.
func told(w *World) string {
	_, turns := Make(w, Turns{})
	later := *w
	for job := range turns {
		turns[job] = w.Now - time.Minute
	}
	p, _ := Make(&later, turns)
	var out []string
	for _, a := range p.Acts {
		text := a.Verb.String() + " " + a.Holding.Addr.String() + " " + a.Holding.Service.Name
		if a.Verb == Write {
			text = fmt.Sprintf("write %s %v", a.Service.Name.Name, a.Status)
		}
		if a.Doubt != "" {
			text += " after " + a.Doubt
		}
		out = append(out, text)
	}
	for _, a := range slices.SortedFunc(mapKeys(p.Announce), netip.Addr.Compare) {
		out = append(out, "announce "+a.String())
	}
	for _, pr := range p.Problems {
		out = append(out, fmt.Sprintf("problem %s: %s", pr.Service.Name, pr.Text))
	}
	return strings.Join(out, "; ")
}

func mapKeys(m map[netip.Addr]bool) func(func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		for a := range m {
			if !yield(a) {
				return
			}
		}
	}
}

func local(s *Service) { s.Local = true }

func ready(name string, nodes ...string) func(*World) {
	return func(w *World) { w.Ready[Key{named(name), false}] = nodes }
}

func class(name string) func(*Service) { return func(s *Service) { s.Class = &name } }

func pools(data map[string]string) func(*World) { return func(w *World) { w.Pools = ParsePools(data) } }

func TestMake(t *testing.T) {
	for _, c := range []struct {
		name string
		w    *World
		want string // with a problem: its beginning
	}{
		{"nothing", base(), ""},
		{"a Service", base().with("web", nil), "create 192.0.2.10 web"},
		{"two", base().with("web", nil).with("x", nil), "create 192.0.2.10 web; create 192.0.2.11 x"},
		{"an address of a node is not given", base().leased("web", "192.0.2.10", mySession).leased("x", "192.0.2.11", mySession).
			with("web", status("192.0.2.10")).with("x", status("192.0.2.11")).with("y", nil),
			"announce 192.0.2.10; announce 192.0.2.11; problem y: its pools have no free address of IPv4"},
		{"no session: none begins to create", base().with("web", nil).change(func(w *World) { w.Session = "" }), ""},
		{"of no type", base().with("web", func(s *Service) { s.Balanced = false }), ""},
		{"of another class", base().with("web", class("other")), ""},
		{"of our class", base().with("web", class(Class)).change(func(w *World) { w.Classes = Classes{} }), "create 192.0.2.10 web"},
		{"without class, if others serve those", base().with("web", nil).change(func(w *World) { w.Classes = Classes{} }), ""},
		{"what another program gave stays", base().with("web", status("192.0.2.11")), "create 192.0.2.11 web"},
		{"what another program gave, and no pool has", base().with("web", status("198.51.100.1")), "create 192.0.2.10 web"},

		{"owned: the status is written", base().with("web", nil).leased("web", "192.0.2.10", mySession), "write web [192.0.2.10]; announce 192.0.2.10"},
		{"owned and written", base().with("web", status("192.0.2.10")).leased("web", "192.0.2.10", mySession), "announce 192.0.2.10"},
		{"a name in the status goes", base().with("web", both(status("192.0.2.10"), func(s *Service) { s.Foreign = true })).leased("web", "192.0.2.10", mySession),
			"write web [192.0.2.10]; announce 192.0.2.10"},
		{"owned by another: nothing", base().with("web", nil).leased("web", "192.0.2.10", "b/1"), ""},
		{"owned by my last session", base().with("web", nil).leased("web", "192.0.2.10", "a/0"), "take 192.0.2.10 web"},
		{"owned by a session that ended", base().with("web", nil).leased("web", "192.0.2.10", "b/0"), "take 192.0.2.10 web after b/0"},
		{"owned by one that has just ended", base().with("web", nil).leased("web", "192.0.2.10", "b/1").change(func(w *World) { w.Now += Lasts + margin }),
			"take 192.0.2.10 web after b/1"},
		{"and shortly before", base().with("web", nil).leased("web", "192.0.2.10", "b/1").change(func(w *World) { w.Now += Lasts + margin - 1 }), ""},

		{"Local, endpoint here", base().with("web", both(local, status("192.0.2.10"))).leased("web", "192.0.2.10", mySession).change(ready("web", "a")), "announce 192.0.2.10"},
		{"Local, endpoint elsewhere", base().with("web", both(local, status("192.0.2.10"))).leased("web", "192.0.2.10", mySession).change(ready("web", "b")), "release 192.0.2.10 web"},
		{"Local, none: kept in silence", base().with("web", both(local, status("192.0.2.10"))).leased("web", "192.0.2.10", mySession), ""},
		{"Local, free, endpoint elsewhere", base().with("web", local).leased("web", "192.0.2.10", "").change(ready("web", "b")), ""},
		{"excluded", base().with("web", status("192.0.2.10")).leased("web", "192.0.2.10", mySession).change(func(w *World) { w.Nodes[0].Excluded = true }), "release 192.0.2.10 web"},
		{"excluded gives nothing", base().with("web", nil).change(func(w *World) { w.Nodes[0].Excluded = true }), ""},

		{"requested", base().with("web", requesting("192.0.2.11")), "create 192.0.2.11 web"},
		{"requested twice alike", base().with("web", requesting("192.0.2.11", "192.0.2.11")), "create 192.0.2.11 web"},
		{"two requests", base().with("web", requesting("192.0.2.11", "192.0.2.10")), "problem web: it requests both 192.0.2.11 and 192.0.2.10"},
		{"no address", base().with("web", requesting("x")), `problem web: it requests "x", which is no address`},
		{"not of a pool", base().with("web", requesting("192.0.2.99")), "problem web: it requests 192.0.2.99, which no pool has"},
		{"of a node", base().with("web", requesting("192.0.2.12")), "problem web: it requests 192.0.2.12, which is of a node"},
		{"another family", base().with("web", requesting("2001:db8::1")), "create 192.0.2.10 web; problem web: it requests 2001:db8::1, and has no cluster IP of IPv6"},
		{"another's", base().with("web", requesting("192.0.2.10")).with("old", status("192.0.2.10")).leased("old", "192.0.2.10", mySession),
			"announce 192.0.2.10; problem web: it requests 192.0.2.10, which the Service shop/old has: Services cannot share"},
		{"moves", base().with("web", both(status("192.0.2.10"), requesting("192.0.2.11"))).leased("web", "192.0.2.10", mySession), "create 192.0.2.11 web; announce 192.0.2.10"},
		{"moving", base().with("web", both(status("192.0.2.10"), requesting("192.0.2.11"))).leased("web", "192.0.2.10", mySession).leased("web", "192.0.2.11", mySession),
			"write web [192.0.2.11]; announce 192.0.2.10; announce 192.0.2.11"},
		{"moved", base().with("web", both(status("192.0.2.11"), requesting("192.0.2.11"))).leased("web", "192.0.2.10", mySession).leased("web", "192.0.2.11", mySession),
			"remove 192.0.2.10 web; announce 192.0.2.11"},
		{"cannot move: keeps", base().with("web", both(status("192.0.2.10"), requesting("192.0.2.99"))).leased("web", "192.0.2.10", mySession),
			"announce 192.0.2.10; problem web: it requests 192.0.2.99"},

		{"given twice: the status counts", base().with("web", status("192.0.2.11")).leased("web", "192.0.2.10", mySession).leased("web", "192.0.2.11", "b/1"), "remove 192.0.2.10 web"},
		{"given twice, the other's surplus is the other's", base().with("web", status("192.0.2.10")).leased("web", "192.0.2.10", mySession).leased("web", "192.0.2.11", "b/1"), "announce 192.0.2.10"},
		{"the Service is gone", base().leased("web", "192.0.2.10", mySession), "remove 192.0.2.10 web"},
		{"gone, with its owner", base().leased("web", "192.0.2.10", "b/0"), "remove 192.0.2.10 web after b/0"},
		{"made again", base().with("web", func(s *Service) { s.UID = "new" }).leased("web", "192.0.2.10", mySession), "remove 192.0.2.10 web; create 192.0.2.11 web"},

		{"the pool has gone", base().with("web", status("192.0.2.10")).leased("web", "192.0.2.10", mySession).change(pools(nil)),
			"announce 192.0.2.10; problem web: no pool has its address 192.0.2.10 any more, and it keeps it"},
		{"no pool", base().with("web", nil).change(pools(nil)), "problem web: no pool gives it an address of IPv4"},
		{"a manual pool", base().with("web", nil).change(pools(map[string]string{"m": "manual\n192.0.2.10"})), "problem web: no pool gives it an address"},
		{"a manual pool, requested", base().with("web", func(s *Service) { s.Pool = "m" }).change(pools(map[string]string{"m": "manual\n192.0.2.10"})), "create 192.0.2.10 web"},
		{"a pool of others", base().with("web", nil).change(pools(map[string]string{"m": "namespaces x\n192.0.2.10"})), "problem web: no pool gives it an address"},
		{"a pool of others, requested", base().with("web", requesting("192.0.2.10")).change(pools(map[string]string{"m": "namespaces x\n192.0.2.10"})),
			"problem web: it requests 192.0.2.10, and the pool m is not for the namespace shop"},
		{"a pool of ours", base().with("web", nil).change(pools(map[string]string{"m": "namespaces x shop\n192.0.2.10"})), "create 192.0.2.10 web"},
		{"a conflict of pools", base().with("web", func(s *Service) { s.Pool = "b" }).change(pools(map[string]string{"a": "192.0.2.0/28", "b": "192.0.2.8/29"})),
			"problem : the pool b gives no address: its range 192.0.2.8-192.0.2.15 overlaps 192.0.2.0-192.0.2.15 of the pool a"},
		{"one family is enough", base().with("web", func(s *Service) { s.Families, s.Prefers = []bool{true, false}, true }), "create 192.0.2.10 web"},
		{"one family is not enough", base().with("web", func(s *Service) { s.Families = []bool{true, false} }), "create 192.0.2.10 web; problem web: no pool gives it an address of IPv6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := told(c.w); got != c.want && !(strings.Contains(c.want, "problem") && strings.HasPrefix(got, c.want)) {
				t.Errorf("got\n%s, want\n%s", got, c.want)
			}
		})
	}
}

// TestTurns: nodes of one rank wait, and a node that waited long enough acts.
func TestTurns(t *testing.T) {
	first := ""
	for _, self := range []string{"a", "b"} {
		w := base().with("web", nil).change(func(w *World) { w.Self, w.Session = self, self+"/9" })
		p, turns := Make(w, Turns{})
		if len(p.Acts) > 0 {
			first += self
			continue
		}
		if want := w.Now + step; p.Next != want || p.Session {
			t.Errorf("%s looks again at %v, want %v; session %v", self, p.Next, want, p.Session)
		}
		w.Now = p.Next
		if p, _ = Make(w, turns); len(p.Acts) != 1 {
			t.Errorf("after its pause %s does %v", self, p.Acts)
		}
	}
	if len(first) != 1 {
		t.Errorf("at once act %q, want one node", first)
	}
}

// TestSpread: addresses are spread over nodes.
func TestSpread(t *testing.T) {
	nodes, count := []string{"a", "b", "c", "d"}, map[string]int{}
	for i := range 400 {
		for _, n := range nodes {
			if rank(Key{named(fmt.Sprint("web", i)), false}, nodes, n) == 0 {
				count[n]++
			}
		}
	}
	for _, n := range nodes {
		if count[n] < 60 || count[n] > 140 {
			t.Errorf("of 400 addresses, %s has %d", n, count[n])
		}
	}
}

func TestParsePools(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.16/28":                       "192.0.2.16-192.0.2.31",
		"192.0.2.1 - 192.0.2.9 # the lab\n\n": "192.0.2.1-192.0.2.9",
		"192.0.2.7":                           "192.0.2.7-192.0.2.7",
		"2001:db8::/126":                      "2001:db8::-2001:db8::3",
		"manual\n192.0.2.7\n2001:db8::1":      "192.0.2.7-192.0.2.7 2001:db8::1-2001:db8::1",
		"":                                    "the pool p gives no address: it has no addresses",
		"192.0.2.17/28":                       "the pool p gives no address: \"192.0.2.17/28\" has bits beside its prefix: write 192.0.2.16/28",
		"192.0.2.9-192.0.2.1":                 "the pool p gives no address: \"192.0.2.9-192.0.2.1\" is no prefix",
		"192.0.2.9-2001:db8::1":               "the pool p gives no address: ",
		"127.0.0.1":                           "the pool p gives no address: 127.0.0.1 is no address that a LAN can have",
		"fe80::1":                             "the pool p gives no address: ",
		"192.0.2.1\nautoAssign: false":        "the pool p gives no address: \"autoAssign:false\" is no prefix",
		"::ffff:192.0.2.1":                    "the pool p gives no address: ",
		"224.0.0.0/8":                         "the pool p gives no address: ",
	} {
		p := ParsePools(map[string]string{"p": text})[0]
		var list []string
		for _, r := range p.Ranges {
			list = append(list, r.String())
		}
		got := p.Wrong
		if got == "" {
			got = strings.Join(list, " ")
		}
		if !strings.HasPrefix(got, want) || p.Wrong == "" && got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	all := ParsePools(map[string]string{"p": "manual\nnamespaces a b\nnamespaces c\n192.0.2.1"})
	if p := all[0]; !p.Manual || !slices.Equal(p.Namespaces, []string{"a", "b", "c"}) {
		t.Errorf("got %+v", p)
	}
}

func TestLeaseNames(t *testing.T) {
	for _, text := range []string{"192.0.2.1", "2001:db8::1"} {
		a := netip.MustParseAddr(text)
		if got, err := addressOf(LeaseName(a)); err != nil || got != a {
			t.Errorf("%s becomes %s and then %v, %v", a, LeaseName(a), got, err)
		}
	}
	for _, name := range []string{"address-", "address-192.0.2", "address-2001-db8--1", "x", "node-a"} {
		if got, err := addressOf(name); err == nil {
			t.Errorf("%s is of %s", name, got)
		}
	}
}
