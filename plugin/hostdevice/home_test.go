// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// A device comes back unchanged, whatever the container did to it, and in whatever way it is
// released.
func TestComesHome(t *testing.T) {
	for name, meddle := range map[string]func(w *world, p *endpointtest.Pod) error{
		"nothing": func(*world, *endpointtest.Pod) error { return nil },
		"renamed": func(_ *world, p *endpointtest.Pod) error {
			return errors.Join(p.Conn().LinkSetDown(p.Link("eth0")), p.Conn().LinkSetName(p.Link("eth0"), "mine"))
		},
		"other MAC and MTU": func(_ *world, p *endpointtest.Pod) error {
			return p.Conn().SetLink(p.Link("eth0").Attrs().Index, nl.LinkChange{MAC: mustMAC("02:00:00:00:00:99"), MTU: 1300})
		},
		"no alias": func(_ *world, p *endpointtest.Pod) error {
			return p.Conn().SetLink(p.Link("eth0").Attrs().Index, nl.LinkChange{Alias: new(string)})
		},
		"down": func(_ *world, p *endpointtest.Pod) error { return p.Conn().LinkSetDown(p.Link("eth0")) },
		"the name taken there": func(_ *world, p *endpointtest.Pod) error {
			return p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hd0")})
		},
		"in a bridge there": func(_ *world, p *endpointtest.Pod) error {
			if err := p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("br0")}); err != nil {
				return err
			}
			return p.Conn().LinkSetMaster(p.Link("eth0"), p.Link("br0"))
		},
		"eth0 on the host": func(w *world, _ *endpointtest.Pod) error {
			w.Cleanup(func() { w.Host.Delete("eth0") })
			return w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("eth0")})
		},
		"given back by the kernel": func(w *world, p *endpointtest.Pod) error {
			w.giveBack(p, "eth0")
			return nil
		},
		"given back as another": func(w *world, p *endpointtest.Pod) error {
			w.giveBack(p, fmt.Sprintf("dev%d", p.Link("eth0").Attrs().Index))
			return nil
		},
	} {
		for how, letGo := range map[string]func(p *endpointtest.Pod) error{
			"DEL": func(p *endpointtest.Pod) error { return p.Do(spec.Del) },
			"DEL without anything": func(p *endpointtest.Pod) error {
				p.Call.NetNS, p.Result, p.Conf = "", nil, `"cniVersion": "1.1.0", "name": "net", "device": "other"`
				return p.Do(spec.Del)
			},
			"GC": collect,
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod("a")
				endpointtest.Must(t, p.Do(spec.Add))
				endpointtest.Must(t, meddle(w, p))
				endpointtest.Must(t, letGo(p))
				w.isHome(how, "hd0")
				endpointtest.Must(t, p.Do(spec.Del))
				w.isHome("second DEL", "hd0")
			})
		}
	}
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// A device that was a port of a bridge is a port again.
func TestMaster(t *testing.T) {
	w := newWorld(t)
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hbr0")}))
	t.Cleanup(func() { w.Host.Delete("hbr0") })
	endpointtest.Must(t, w.HostConn().LinkSetMaster(w.HostLink("hd0"), w.HostLink("hbr0")))
	w.was["hd0"] = w.facts("hd0")
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Del))
	w.isHome("DEL", "hd0")
	endpointtest.Must(t, p.Do(spec.Add))
	w.Host.Delete("hbr0")
	endpointtest.Must(t, p.Do(spec.Del))
	w.Gone("eth0")
	w.HostLink("hd0")
}

// A device that was down is down again.
func TestDown(t *testing.T) {
	w := newWorld(t)
	endpointtest.Must(t, w.HostConn().LinkSetDown(w.HostLink("hd0")))
	w.was["hd0"] = w.facts("hd0")
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Del))
	w.isHome("DEL", "hd0")
}

// A virtual device is deleted with the namespace, and nothing is left of it.
func TestVirtualDeviceGone(t *testing.T) {
	w := newWorld(t)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Conn().LinkDel(p.Link("eth0")))
	endpointtest.Must(t, p.Do(spec.Del))
	if left := records(t); len(left) > 0 {
		t.Error(left)
	}
}

// While another device of the host has the name, the returned device has another name. When the
// name is free, GC restores it.
func TestNameTaken(t *testing.T) {
	w := newWorld(t)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hd0")}))
	endpointtest.Must(t, p.Do(spec.Del))
	links, err := w.HostConn().LinkList()
	endpointtest.Must(t, err)
	found := ""
	for _, l := range links {
		if l.Attrs().Alias == "hd0" {
			found = l.Attrs().Name
		}
	}
	if !strings.HasPrefix(found, "dev") {
		t.Fatalf("the device is %q on the host", found)
	}
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, collect(p))
	if len(records(t)) != 1 {
		t.Errorf("records: %q", records(t))
	}
	w.Host.Delete("hd0")
	endpointtest.Must(t, collect(p))
	w.isHome("GC", "hd0")
}

// A repeated DEL does what GC does. Neither touches other links of the container, even one with
// the device's name.
func TestNameTakenThenFree(t *testing.T) {
	w := newWorld(t)
	p := w.pod("a")
	endpointtest.Must(t, p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hd0")}))
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hd0")}))
	endpointtest.Must(t, p.Do(spec.Del))
	if kind := w.HostLink("hd0").Type(); kind != "bridge" {
		t.Errorf("the host's other hd0 is a %s", kind)
	}
	w.Host.Delete("hd0")
	endpointtest.Must(t, p.Do(spec.Del))
	w.isHome("DEL again", "hd0")
	if kind := p.Link("hd0").Type(); kind != "bridge" {
		t.Errorf("the container's hd0 is a %s", kind)
	}
}

// The host gave the moved device's alternative name to another device.
func TestAlternativeName(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"card-in-the-first-slot", "alt0"} {
		endpointtest.Must(t, w.HostConn().LinkAddAltName(w.HostLink("hd0"), name))
	}
	p := w.Pod("a", `"device": "card-in-the-first-slot"`)
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Del))
	w.isHome("DEL", "hd0")
	w.Want("index", fmt.Sprint(w.HostLink("alt0").Attrs().Index), fmt.Sprint(w.HostLink("hd0").Attrs().Index))
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("alt0")}))
	t.Cleanup(func() { w.Host.Delete("alt0") })
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, collect(p))
	w.isHome("GC", "hd0")
	w.Want("the other name", w.HostLink("card-in-the-first-slot").Attrs().Name, "hd0")
}

// run calls the plugin in a new session. fault may let a step fail.
func run(p *endpointtest.Pod, fault func(string) error) error {
	inv := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin, &static.Plugin})
		s.Fault = fault
		return s
	}}
	call := p.Call
	call.Verb, call.Config = spec.Add, []byte("{"+p.Conf+"}")
	_, err := inv.Invoke(context.Background(), name, &call)
	return err
}

// A fault at any step of ADD returns the device at once. After a kill, DEL or GC returns it.
func TestFaultAndKillAtEveryStep(t *testing.T) {
	w := newWorld(t)
	injected := errors.New("injected")
	end := map[string]func(p *endpointtest.Pod) error{
		"undo": nil,
		"DEL":  func(p *endpointtest.Pod) error { return p.Do(spec.Del) },
		"GC":   collect,
		"DEL after the kernel": func(p *endpointtest.Pod) error {
			if _, err := p.Conn().Link("eth0"); err == nil {
				w.giveBack(p, "eth0")
			}
			return p.Do(spec.Del)
		},
	}
	for how, repair := range end {
		away := 0
		for n := 1; ; n++ {
			p, step, where := w.pod(strings.ReplaceAll(fmt.Sprint(how, n), " ", "")), 0, ""
			done := make(chan error, 1)
			go func() {
				defer close(done)
				done <- run(p, func(name string) error {
					if step++; step != n {
						return nil
					}
					where = name
					if repair != nil {
						runtime.Goexit() // nothing is undone
					}
					return injected
				})
			}()
			err := <-done
			if where == "" {
				endpointtest.Must(t, err)
				endpointtest.Must(t, p.Do(spec.Del))
				if n < 6 {
					t.Errorf("only %d steps", n)
				}
				break
			}
			if _, err := w.HostConn().Link("hd0"); err != nil {
				away++
			}
			if repair != nil {
				endpointtest.Must(t, repair(p))
			} else if !errors.Is(err, injected) {
				t.Errorf("step %q: %v", where, err)
			}
			w.isHome(how+" at "+where, "hd0")
		}
		if (away > 3) != (repair != nil) {
			t.Errorf("%s: the device was away %d times", how, away)
		}
	}
}

// TestKilledOnTheWay makes by hand the states that a kill leaves during the move, in both
// directions.
func TestKilledOnTheWay(t *testing.T) {
	alias := "hd0"
	for name, half := range map[string]func(w *world, p *endpointtest.Pod) error{
		"marked, not moved": func(w *world, p *endpointtest.Pod) error {
			if err := p.Do(spec.Del); err != nil {
				return err
			}
			return stop(p, func(string) bool {
				return w.HostConn().SetLink(w.HostLink("hd0").Attrs().Index, nl.LinkChange{Alias: &alias}) == nil
			})
		},
		"moved, not renamed": func(_ *world, p *endpointtest.Pod) error {
			index := p.Link("eth0").Attrs().Index
			return errors.Join(p.Conn().SetLink(index, nl.LinkChange{Down: true}), p.Conn().SetLink(index, nl.LinkChange{Name: "hd0"}))
		},
		"back, not restored": func(_ *world, p *endpointtest.Pod) error {
			host, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer host.Close() //nolint:errcheck // test
			return p.Conn().SetLink(p.Link("eth0").Attrs().Index, nl.LinkChange{NetNS: int(host.Fd()), Name: "hd0"})
		},
	} {
		for how, repair := range map[string]func(p *endpointtest.Pod) error{
			"DEL": func(p *endpointtest.Pod) error { return p.Do(spec.Del) }, "GC": collect,
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod("a")
				endpointtest.Must(t, p.Do(spec.Add))
				endpointtest.Must(t, half(w, p))
				endpointtest.Must(t, repair(p))
				w.isHome(how, "hd0")
			})
		}
	}
}

// stop kills an ADD at the first change after its record.
func stop(p *endpointtest.Pod, then func(step string) bool) error {
	done := make(chan error, 1)
	go func() {
		defer close(done)
		done <- run(p, func(name string) error {
			if strings.HasPrefix(name, "host: ip link set") {
				if !then(name) {
					return errors.New("cannot")
				}
				runtime.Goexit()
			}
			return nil
		})
	}()
	return <-done
}
