// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/burst"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

var wait = burst.Wait{Shortest: 20 * time.Millisecond, Longest: 100 * time.Millisecond}

func service(name, more string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q},"spec":{"type":"ClusterIP","clusterIPs":["10.96.0.%d"],"ports":[{"port":80}]%s}}`, name, name[len(name)-1], more)
}

func slice(name, service, more, addr string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"labels":{"kubernetes.io/service-name":%q%s}},"addressType":"IPv4",
		"ports":[{"name":"","port":8080}],"endpoints":[{"addresses":[%q]}]}`, name, service, more, addr)
}

func node(name, more string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"podCIDRs":["10.244.1.0/24"]},"status":{"addresses":[{"type":"InternalIP","address":"172.16.0.1"}]%s}}`, name, more)
}

func cidr(text string) string {
	return fmt.Sprintf(`{"metadata":{"name":"kubernetes"},"spec":{"cidrs":[%q]}}`, text)
}

func listOf(objects ...string) func(func([]byte, error) bool) {
	return func(yield func([]byte, error) bool) {
		for _, o := range objects {
			if !yield([]byte(o), nil) {
				return
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unpacked returns a state with its objects in the maps.
func unpacked(s services.State) services.State {
	from := s.Source
	s.Source, s.Services, s.Slices = nil, make(map[services.Name]*services.Service), make(map[services.Name][]*services.Slice)
	for name := range from.(*Cluster).objects.kept {
		svc, list := from.Of(nameOf(name))
		if svc != nil {
			s.Services[svc.Name] = svc
		}
		if len(list) > 0 {
			s.Slices[nameOf(name)] = list
		}
	}
	return s
}

// followed is a Cluster whose states are noted.
type followed struct {
	*Cluster
	t *testing.T

	lock  sync.Mutex
	calls []string
	state *services.State
	err   error

	triggers []time.Time
}

// heard returns the calls since the last time.
func (f *followed) heard() []string {
	synctest.Wait()
	f.lock.Lock()
	defer f.lock.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// fails says how the next calls end.
func (f *followed) fails(err error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.err = err
}

// follow runs a test in a bubble.
func follow(t *testing.T, test func(f *followed)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &followed{Cluster: New("n1", services.Options{}), t: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.Follow(ctx, wait, func() {}, func(s *services.State, c Changed) error {
				f.lock.Lock()
				defer f.lock.Unlock()
				f.calls, f.state, f.triggers = append(f.calls, fmt.Sprintf("{%v %v}", c.All, c.Names)), s, append(f.triggers, c.Triggers...)
				return f.err
			})
		}()
		test(f)
		cancel()
		<-ended
	})
}

// list lists each kind once.
func (f *followed) list() {
	f.t.Helper()
	must(f.t, f.Replace(Services, listOf(service("s1", ""), service("s2", ""))))
	must(f.t, f.Replace(EndpointSlices, listOf(slice("e1", "s1", "", "10.244.1.1"))))
	must(f.t, f.Replace(Nodes, listOf(node("n1", ""), node("n2", ""))))
	must(f.t, f.Replace(ServiceCIDRs, listOf(cidr("10.96.0.0/16"))))
	f.expect("the lists", "{true []}")
}

// expect waits for the end of a burst, and compares the calls since the last time.
func (f *followed) expect(about string, want ...string) {
	f.t.Helper()
	time.Sleep(time.Second)
	if calls := f.heard(); !slices.Equal(calls, want) {
		f.t.Errorf("%s: calls %q, want %q", about, calls, want)
	}
}

// Nothing is compiled before the last kind has been listed.
func TestNothingBeforeTheLists(t *testing.T) {
	follow(t, func(f *followed) {
		must(t, f.Set(Services, []byte(service("s1", ""))))
		f.SetAddresses([]netip.Addr{netip.MustParseAddr("172.16.0.1")})
		must(t, f.Replace(EndpointSlices, listOf()))
		must(t, f.Replace(Nodes, listOf()))
		f.expect("some kinds")
		f.list()
	})
}

// Each event names the Services that it concerns, or all. What Services cannot see is no change.
func TestChanged(t *testing.T) {
	follow(t, func(f *followed) {
		f.list()
		set := func(k Kind, object string) func() { return func() { must(t, f.Set(k, []byte(object))) } }
		for _, c := range []struct {
			about string
			do    func()
			want  string
		}{
			{"the same Service", set(Services, service("s1", "")), ""},
			{"a field that does not count", set(Services, service("s1", `,"selector":{"a":"b"}`)), ""},
			{"affinity", set(Services, service("s1", `,"sessionAffinity":"ClientIP"`)), "{false [shop/s1]}"},
			{"another endpoint", set(EndpointSlices, slice("e1", "s1", "", "10.244.1.2")), "{false [shop/s1]}"},
			{"a slice of another Service", set(EndpointSlices, slice("e1", "s2", "", "10.244.1.2")), "{false [shop/s1 shop/s2]}"},
			{"a slice becomes headless", set(EndpointSlices, slice("e1", "s2", `,"service.kubernetes.io/headless":""`, "10.244.1.2")), "{false [shop/s2]}"},
			{"a headless slice", set(EndpointSlices, slice("e1", "s2", `,"service.kubernetes.io/headless":""`, "10.244.1.3")), ""},
			{"a slice without a Service", set(EndpointSlices, slice("e2", "", "", "10.244.1.3")), ""},
			{"a new Service", set(Services, service("s3", "")), "{false [shop/s3]}"},
			{"two Services", func() { f.Delete(Services, "shop", "s3"); f.Delete(Services, "shop", "s2") }, "{false [shop/s2 shop/s3]}"},
			{"deleted twice", func() { f.Delete(Services, "shop", "s3"); f.Delete(EndpointSlices, "shop", "e9") }, ""},
			{"another Node", set(Nodes, node("n2", `,"x":1`)), ""},
			{"this Node's status", set(Nodes, node("n1", `,"conditions":[]`)), ""},
			{"this Node is another one", set(Nodes, strings.Replace(node("n1", ""), "172.16.0.1", "172.16.0.2", 1)), "{true []}"},
			{"this Node is deleted", func() { f.Delete(Nodes, "", "n1") }, ""},
			{"a list without it", func() { must(t, f.Replace(Nodes, listOf())) }, ""},
			{"a ServiceCIDR", set(ServiceCIDRs, cidr("10.98.0.0/16")), "{true []}"},
			{"an address", func() { f.SetAddresses([]netip.Addr{netip.MustParseAddr("172.16.0.9")}) }, "{true []}"},
			{"the same address", func() { f.SetAddresses([]netip.Addr{netip.MustParseAddr("172.16.0.9")}) }, ""},
			{"woken", f.Wake, "{true []}"},
		} {
			c.do()
			if c.want == "" {
				f.expect(c.about)
			} else {
				f.expect(c.about, c.want)
			}
		}
		f.heard()
		if s := unpacked(*f.state); len(s.Services) != 1 || len(s.Slices) != 0 || s.Node.Name != "n1" || len(s.CIDRs) != 1 || len(s.Addresses) != 1 {
			t.Errorf("at the end %+v", s)
		}
	})
}

// What fails is tried again, for all.
func TestFails(t *testing.T) {
	follow(t, func(f *followed) {
		f.list()
		f.fails(errors.New("the kernel refuses"))
		must(t, f.Set(Services, []byte(service("s3", ""))))
		time.Sleep(2 * resident.RetryMost)
		if calls := f.heard(); len(calls) < 2 || calls[0] != "{false [shop/s3]}" || slices.Contains(calls[1:], calls[0]) {
			t.Errorf("a change that fails: calls %q", calls)
		}
		f.fails(nil)
		time.Sleep(2 * resident.RetryMost)
		f.expect("the last try", "{true []}")
	})
}

// A time of what changed endpoints is told once, when the change is in force. Those of before the agent's start are not told.
func TestTriggers(t *testing.T) {
	follow(t, func(f *followed) {
		f.list()
		at := func(d time.Duration, addr string) string {
			text := slice("e1", "s1", "", addr)
			return strings.Replace(text, `"labels"`, fmt.Sprintf(`"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":%q},"labels"`, f.started.Add(d).Format(time.RFC3339Nano)), 1)
		}
		told := func(about string, want ...time.Duration) {
			t.Helper()
			time.Sleep(2 * resident.RetryMost)
			f.heard()
			f.lock.Lock()
			defer f.lock.Unlock()
			var got []time.Duration
			for _, at := range f.triggers {
				got = append(got, at.Sub(f.started))
			}
			if f.triggers = nil; !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", about, got, want)
			}
		}
		must(t, f.Set(EndpointSlices, []byte(at(-time.Second, "10.244.1.2"))))
		told("before the start")
		must(t, f.Set(EndpointSlices, []byte(at(time.Second, "10.244.1.2"))))
		told("a time alone")
		must(t, f.Set(EndpointSlices, []byte(at(2*time.Second, "10.244.1.3"))))
		must(t, f.Set(EndpointSlices, []byte(at(3*time.Second, "10.244.1.4"))))
		told("two changes", 2*time.Second, 3*time.Second)
		must(t, f.Set(EndpointSlices, []byte(at(4*time.Second, "10.244.1.5"))))
		f.Delete(EndpointSlices, "shop", "e1")
		told("a change and a deletion")
	})
}

// A change is pending until it is in force.
func TestPending(t *testing.T) {
	follow(t, func(f *followed) {
		must(t, f.Set(Services, []byte(service("s9", ""))))
		if at := f.Pending(); !at.IsZero() {
			t.Errorf("before the lists: since %v", at)
		}
		f.list()
		if at := f.Pending(); !at.IsZero() {
			t.Errorf("all is in force: since %v", at)
		}
		f.fails(errors.New("the kernel refuses"))
		since := time.Now()
		for range 3 {
			must(t, f.Set(Services, []byte(service("s3", ""))))
			f.Delete(Services, "shop", "s3")
			time.Sleep(resident.RetryMost)
			if at := f.Pending(); !at.Equal(since) {
				t.Errorf("since %v, want %v", at, since)
			}
		}
		f.fails(nil)
		time.Sleep(2 * resident.RetryMost)
		f.heard()
		if at := f.Pending(); !at.IsZero() {
			t.Errorf("after the last try: since %v", at)
		}
	})
}

// What can be read of an object counts, and the rest is reported. An object without a name may be any.
func TestProblems(t *testing.T) {
	follow(t, func(f *followed) {
		f.list()
		must(t, f.Set(Services, []byte(service("s1", `,"type":7`))))
		must(t, f.Set(EndpointSlices, []byte(strings.Replace(slice("e1", "s1", "", "10.244.1.1"), `"port"`, `"protocol":"DCCP","port"`, 1))))
		if got := fmt.Sprint(f.Problems()); !strings.Contains(got, "{endpointslice shop/e1 ") || !strings.Contains(got, "{service shop/s1 ") {
			t.Errorf("problems: %s", got)
		}
		if err := f.Set(Services, []byte(`{"metadata":{"name":"s1"}}`)); err == nil {
			t.Error("takes a Service without a namespace")
		}
		if err := f.Replace(Services, listOf(service("s9", ""), `{}`)); err == nil || len(f.keptNames(Services)) != 2 {
			t.Errorf("a list with an unnamed object: %v, and %d Services", err, len(f.keptNames(Services)))
		}
		must(t, f.Replace(Services, listOf(service("s1", ""))))
		must(t, f.Replace(EndpointSlices, listOf()))
		if list := f.Problems(); len(list) > 0 {
			t.Errorf("problems of objects that are right, or deleted: %v", list)
		}
	})
}

// Whatever the order of events, the state is that of a list of all, and a program that was updated by names is that of everything.
func TestOrder(t *testing.T) {
	seed, _ := draw.Seed(t)
	for round := range draw.Number(t, "PATCHBAY_SERVICE_EVENTS", 20, 400) {
		g := rand.New(rand.NewPCG(seed, uint64(round)))
		c, objects := New("n1", services.Options{}), make(map[Kind]map[string]string)
		for k := range kinds {
			objects[k] = make(map[string]string)
			must(t, c.Replace(k, listOf()))
		}
		var program *services.Program
		for range 60 {
			event(t, g, c, objects)
			if g.IntN(3) > 0 {
				continue
			}
			changed, _ := c.next()
			if changed.All {
				program = services.Compile(&c.state, program)
			} else {
				program.Update(&c.state, changed.Names...)
			}
			check(t, c, objects, program)
		}
	}
}

// event changes or deletes an object, or lists a kind.
func event(t *testing.T, g *rand.Rand, c *Cluster, objects map[Kind]map[string]string) {
	t.Helper()
	k, name := Kind(g.IntN(int(kinds))), fmt.Sprint("x", g.IntN(4))
	pick := func(list ...string) string { return list[g.IntN(len(list))] }
	object := map[Kind]string{
		Services:       service(name, pick("", `,"sessionAffinity":"ClientIP"`, `,"externalIPs":["192.0.2.1"]`)),
		EndpointSlices: slice(name, fmt.Sprint("x", g.IntN(4)), pick("", "", `,"service.kubernetes.io/headless":""`), fmt.Sprint("10.244.1.", g.IntN(3)+1)),
		Nodes:          node("n1", ""),
		ServiceCIDRs:   cidr(pick("10.96.0.0/16", "10.0.0.0/8")),
	}[k]
	if k == Nodes || k == ServiceCIDRs {
		name = "kubernetes"
	}
	if k == Nodes || g.IntN(4) > 0 {
		objects[k][name] = object
		must(t, c.Set(k, []byte(object)))
	} else {
		delete(objects[k], name)
		c.Delete(k, map[bool]string{true: "shop"}[k != ServiceCIDRs], name)
	}
	if g.IntN(8) == 0 {
		must(t, c.Replace(k, listAll(objects[k])))
	}
}

func listAll(objects map[string]string) func(func([]byte, error) bool) {
	var list []string
	for _, o := range objects {
		list = append(list, o)
	}
	return listOf(list...)
}

// check compares with a Cluster that gets only lists.
func check(t *testing.T, c *Cluster, objects map[Kind]map[string]string, program *services.Program) {
	t.Helper()
	fresh := New("n1", services.Options{})
	for k := range kinds {
		must(t, fresh.Replace(k, listAll(objects[k])))
	}
	fresh.next()
	if got, want := unpacked(c.state), unpacked(fresh.state); !reflect.DeepEqual(got, want) {
		t.Fatalf("followed\n%+v\nlisted\n%+v", got, want)
	}
	if again := services.Diff(program, services.Compile(&c.state, program)); len(again.Steps) > 0 {
		t.Fatalf("compiled anew, %v differs", again.Steps)
	}
}
