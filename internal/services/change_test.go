// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// The elements of a program, as a person reads them. The order is that in which they are loaded: nothing is visible before it
// is complete.
func TestElements(t *testing.T) {
	s := world(t, "10.244.1.1@n1, 10.244.2.1@n2, 10.244.3.1@n3")
	externalLocal(s)
	sources("203.0.113.0/24")(s)
	s.web().Affinity = 10800
	s.Services[Name{"shop", "gone"}] = &Service{
		Name: Name{"shop", "gone"}, Type: typeNodePort, ClusterIPs: addrs("10.96.0.2"), Ports: []ServicePort{{"u", l4.UDP, 53, 30053}}, InternalLocal: true,
	}
	change := Diff(nil, Compile(s, nil))
	if text := change.text(); text != strings.TrimSpace(elements) {
		t.Errorf("got\n%s\nwant\n%s", text, elements)
	}
	if flows := fmt.Sprint(change.Flows); len(change.Forget) > 0 || flows != "[{udp . 30053 []} {10.96.0.2 . udp . 53 []}]" {
		t.Errorf("from nothing: forgets %v, compares %s", change.Forget, flows)
	}
}

const elements = `
+ pods4 10.244.1.0/24
+ pods6 fd00:244:1::/64
+ keeping4 10.244.1.0/24
+ keeping6 fd00:244:1::/64
+ hairpin4 10.244.1.1

+ npmany4_4 tcp . 30080 . 0 : 10.244.1.1 . 8080
+ npmany4_4 tcp . 30080 . 1 : 10.244.2.1 . 8080
+ npmany4_4 tcp . 30080 . 2 : 10.244.3.1 . 8080
+ npclass4_4 tcp . 30080
+ npoutside4 tcp . 30080
+ npoutsideone4 tcp . 30080 : 10.244.1.1 . 8080
+ npsticky4_10800 tcp . 30080

+ npreject4 udp . 30053
+ npmasq4 udp . 30053

+ many4_4 10.96.0.1 . tcp . 80 . 0 : 10.244.1.1 . 8080
+ many4_4 10.96.0.1 . tcp . 80 . 1 : 10.244.2.1 . 8080
+ many4_4 10.96.0.1 . tcp . 80 . 2 : 10.244.3.1 . 8080
+ class4_4 10.96.0.1 . tcp . 80
+ sticky4_10800 10.96.0.1 . tcp . 80
+ reject4 10.96.0.2 . udp . 53

+ many4_4 192.0.2.1 . tcp . 80 . 0 : 10.244.1.1 . 8080
+ many4_4 192.0.2.1 . tcp . 80 . 1 : 10.244.2.1 . 8080
+ many4_4 192.0.2.1 . tcp . 80 . 2 : 10.244.3.1 . 8080
+ class4_4 192.0.2.1 . tcp . 80
+ outside4 192.0.2.1 . tcp . 80
+ outsideone4 192.0.2.1 . tcp . 80 : 10.244.1.1 . 8080
+ sticky4_10800 192.0.2.1 . tcp . 80
+ ranged4 192.0.2.1 . tcp . 80
+ allowed4_24 192.0.2.1 . tcp . 80 . 203.0.113.0

+ many4_4 192.0.2.9 . tcp . 80 . 0 : 10.244.1.1 . 8080
+ many4_4 192.0.2.9 . tcp . 80 . 1 : 10.244.2.1 . 8080
+ many4_4 192.0.2.9 . tcp . 80 . 2 : 10.244.3.1 . 8080
+ class4_4 192.0.2.9 . tcp . 80
+ outside4 192.0.2.9 . tcp . 80
+ outsideone4 192.0.2.9 . tcp . 80 : 10.244.1.1 . 8080
+ sticky4_10800 192.0.2.9 . tcp . 80
+ clusterips4 10.96.0.1
+ clusterips4 10.96.0.2
+ vips4 10.96.0.1
+ vips4 10.96.0.2
+ vips4 192.0.2.1
+ vips4 192.0.2.9

+ nodeaddrs4 172.16.0.1
+ nodeaddrs6 fd00:16::1
+ cidrs4 10.96.0.0/16
`

// A changed endpoint is a changed slot, whatever the cluster has.
func TestChangesAreSmall(t *testing.T) {
	s := world(t, "")
	s.web().Type = typeClusterIP
	s.web().ExternalIPs = nil
	for i := range 5 {
		s.slice().Endpoints = append(s.slice().Endpoints, SliceEndpoint{Address: netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), Ready: true, Serving: true})
	}
	p := Compile(s, nil)
	for _, c := range []struct {
		what string
		edit func(*Slice)
		want string
	}{
		{"one more", func(l *Slice) { l.Endpoints = append(l.Endpoints, endpointList(t, "10.244.2.100")...) }, "+ many4_8 10.96.0.1 . tcp . 80 . 5 : 10.244.2.100 . 8080"},
		{"the first leaves", func(l *Slice) { l.Endpoints = l.Endpoints[1:] },
			"- many4_8 10.96.0.1 . tcp . 80 . 0 : 10.244.2.0 . 8080\n- many4_8 10.96.0.1 . tcp . 80 . 5 : 10.244.2.100 . 8080\n+ many4_8 10.96.0.1 . tcp . 80 . 0 : 10.244.2.100 . 8080"},
		{"one is replaced", func(l *Slice) {
			l.Endpoints[0].Address = l.Endpoints[0].Address.Next().Next().Next().Next().Next().Next()
		},
			"- many4_8 10.96.0.1 . tcp . 80 . 1 : 10.244.2.1 . 8080\n+ many4_8 10.96.0.1 . tcp . 80 . 1 : 10.244.2.7 . 8080"},
	} {
		c.edit(s.slice())
		if got := p.Update(s, s.web().Name).text(); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.what, got, c.want)
		}
	}
	delete(s.Services, s.web().Name)
	change := p.Update(s, Name{"shop", "web"})
	if text := change.text(); strings.Contains(text, "+") || !strings.HasPrefix(text, "- vips4 ") || len(p.wanted)+len(p.ports) > 0 {
		t.Errorf("a Service leaves by %v, and the program keeps %v", change, p.wanted)
	}
}

// text has a line for each element, and an empty line between steps of several elements.
func (c Change) text() (text string) {
	for i, s := range c.Steps {
		if i > 0 && len(s.Remove)+len(s.Add) > 1 {
			text += "\n"
		}
		for _, e := range s.Remove {
			text += "- " + e.String() + "\n"
		}
		for _, e := range s.Add {
			text += "+ " + e.String() + "\n"
		}
	}
	return strings.TrimSpace(text)
}

// Affinity ends for endpoints that leave, each side for itself, and UDP flows are compared when what serves changes.
func TestForgetAndFlows(t *testing.T) {
	s := world(t, "10.244.1.1@n1, 10.244.2.1@n2")
	externalLocal(s)
	s.web().Type, s.web().ExternalIPs, s.web().Affinity = typeNodePort, nil, 5
	s.web().Ports[0].Protocol, s.slice().Ports[0].Protocol = l4.UDP, l4.UDP
	p := Compile(s, nil)
	update := func(endpoints string) string {
		s.slice().Endpoints = endpointList(t, endpoints)
		c := p.Update(s, s.web().Name)
		return fmt.Sprint(c.Forget, " ", c.Flows)
	}
	for _, step := range []struct{ endpoints, want string }{
		{"10.244.1.1@n1, 10.244.2.1@n2 draining", "[{udp . 30080 10.244.2.1:8080 true false} {10.96.0.1 . udp . 80 10.244.2.1:8080 true true}] []"},
		{"10.244.1.1@n1 draining, 10.244.2.1@n2", "[{udp . 30080 10.244.1.1:8080 true false} {10.96.0.1 . udp . 80 10.244.1.1:8080 true true}] []"},
		{"10.244.2.1@n2", "[{udp . 30080 10.244.1.1:8080 false true}] [{udp . 30080 [10.244.2.1:8080]} {10.96.0.1 . udp . 80 [10.244.2.1:8080]}]"},
		{"", "[{udp . 30080 10.244.2.1:8080 true false} {10.96.0.1 . udp . 80 10.244.2.1:8080 true true}] [{udp . 30080 []} {10.96.0.1 . udp . 80 []}]"},
	} {
		if got := update(step.endpoints); got != step.want {
			t.Errorf("%s:\ngot  %s\nwant %s", step.endpoints, got, step.want)
		}
	}
}

// A set of ranges of the kernel takes no two that overlap.
func TestRangesDoNotOverlap(t *testing.T) {
	got := fmt.Sprint(widest(prefixes("10.96.0.0/24", "10.96.0.0/16", "10.96.0.0/16", "10.97.0.0/16", "fd00::/64", "fd00::/112")))
	if want := "[10.96.0.0/16 10.97.0.0/16 fd00::/64]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// BenchmarkLarge compiles 45,000 Services, most with one endpoint, and updates one of them.
func BenchmarkLarge(b *testing.B) {
	s := large(45000)
	old := heap()
	start := time.Now()
	p := Compile(s, nil)
	took := time.Since(start)
	b.Logf("compiled in %v, %d MB", took, (heap()-old)>>20)
	start = time.Now()
	b.Logf("%d steps in %v", len(Diff(nil, p).Steps), time.Since(start))
	name := Name{"ns", "s7"}
	for i := 0; b.Loop(); i++ {
		e := &s.Slices[name][0].Endpoints[0]
		e.Address = netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})
		p.Update(s, name)
	}
	runtime.KeepAlive(p)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// large has endpoints as the design's data set "mix": 60 % have one, and some more than a hundred.
func large(n int) *State {
	s := &State{Node: Node{Name: "n1", Pods: prefixes("10.0.0.0/24")}, Services: make(map[Name]*Service), Slices: make(map[Name][]*Slice)}
	at := uint32(10 << 24)
	next := func() netip.Addr {
		at++
		return netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
	}
	for i := range n {
		name := Name{"ns", fmt.Sprint("s", i)}
		s.Services[name] = &Service{Name: name, Type: typeClusterIP, ClusterIPs: []netip.Addr{next()}, Ports: []ServicePort{{"", l4.TCP, 80, 0}}}
		count := []int{1, 1, 1, 1, 1, 1, 2, 2, 6, 6}[i%10]
		if i%25 == 8 {
			count = 80
		}
		slice := &Slice{Name: "x", Service: name, Ports: []SlicePort{{"", l4.TCP, 80}}}
		for range count {
			slice.Endpoints = append(slice.Endpoints, SliceEndpoint{Address: next(), Node: "n2", Ready: true, Serving: true})
		}
		s.Slices[name] = []*Slice{slice}
	}
	return s
}
