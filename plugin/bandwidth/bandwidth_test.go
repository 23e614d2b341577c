// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestToShape(t *testing.T) {
	for _, tc := range []struct {
		name        string
		rate, burst uint64
		runtime     bool
		want        shape
		err         string
	}{
		{name: "none"},
		{name: "plain", rate: 8000, burst: 16000, want: shape{1000, 2000}},
		{name: "rate alone", rate: 1, err: "if rate is set, burst must also be set"},
		{name: "burst alone", burst: 1, err: "if burst is set, rate must also be set"},
		{name: "huge burst", rate: 8000, burst: 1 << 40, err: "burst cannot be more than 4GB"},
		{name: "less than a byte a second", rate: 7, burst: 8000, err: "invalid rate"},
		{name: "less than a byte", rate: 8000, burst: 7, err: "invalid burst"},
		{name: "containerd's no burst", rate: 10_000_000, burst: noBurstContainerd, runtime: true, want: shape{1_250_000, 131072}},
		{name: "CRI-O's no burst", rate: 10_000_000_000, burst: noBurstCRIO, runtime: true, want: shape{1_250_000_000, 125_000_000}},
		{name: "runtime with a burst and no rate", burst: noBurstContainerd, runtime: true},
		{name: "an operator's own 512 MiB stays", rate: 8000, burst: noBurstContainerd, want: shape{1000, 536870911}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := toShape(tc.rate, tc.burst, tc.runtime)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || spec.ErrorCode(err) != spec.CodeInvalidConfig {
					t.Fatalf("error %v (code %d), want %q with code 7", err, spec.ErrorCode(err), tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

// The reference computed these values for a rate of 10 Mbit/s and a burst of 1 Mbit (plugins
// v1.9.1). The reference's CHECK must accept our queue.
func TestTbfIsTheReferences(t *testing.T) {
	q := tbf{"x", shape{1_250_000, 125_000}}.qdisc(1)
	if q.Limit != 156250 {
		t.Errorf("limit %d, want 156250", q.Limit)
	}
	if want := uint32(100_000 * netlink.TickInUsec()); q.Buffer != want {
		t.Errorf("buffer %d, want %d", q.Buffer, want)
	}
}

// world is a container connected by a veth to this namespace.
type world struct {
	t    *testing.T
	ns   string
	prev spec.Result
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, ns: nettest.NewNS(t, "bw-"+strings.ToLower(t.Name()[4:]))}
	w.prev.Interfaces = []spec.Interface{{Name: "hostend"}, {Name: "eth0", Sandbox: w.ns}}
	w.veth("eth0", "hostend")
	return w
}

func (w *world) veth(inside, outside string) {
	w.t.Helper()
	ns, err := netns.Open(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	attrs := netlink.NewLinkAttrs()
	attrs.Name = outside
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: inside, PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { netlink.LinkDel(veth) }) //nolint:errcheck // may be gone with the namespace
}

// call runs a verb in process; conf is merged over the head.
func (w *world) call(verb spec.Verb, id, ifName, conf string, fault func(string) error) (*spec.Result, error) {
	w.t.Helper()
	out, err := endpointtest.Chained{
		Plugin: &Plugin, Network: "net", Prev: &w.prev,
		Session: func(s *plugin.Session) { s.Fault = fault },
		Call:    spec.Call{Verb: verb, ContainerID: id, NetNS: w.ns, IfName: ifName},
	}.Do(context.Background(), w.t, conf)
	if err != nil || verb != spec.Add {
		return nil, err
	}
	return spec.ParseResult(out, "1.1.0")
}

const both = `{"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 16000000, "egressBurst": 1600000}`

func (w *world) qdiscs(link string) (kinds []string) {
	w.t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := nl.Retry(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		w.t.Fatal(err)
	}
	for _, q := range list {
		kinds = append(kinds, q.Type())
	}
	return kinds
}

// The redirect must steal the packet. Otherwise the packet would continue beside its limited
// copy: egress would be unlimited, and sent twice.
func TestRedirectSteals(t *testing.T) {
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 7}}
	action := matchAll(link, link).Actions[0].(*netlink.MirredAction)
	if action.Action != netlink.TC_ACT_STOLEN || action.MirredAction != netlink.TCA_EGRESS_REDIR || action.Ifindex != 7 {
		t.Errorf("action is %v, want a stolen egress redirect to link 7", action)
	}
}

// unshape removes the root queue. DEL leaves this queue, because it ends with the veth.
func (w *world) unshape(link string) {
	w.t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		w.t.Fatal(err)
	}
	attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	if err := netlink.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs}); err != nil {
		w.t.Fatal(err)
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	result, err := w.call(spec.Add, "c1", "eth0", both, nil)
	if err != nil {
		t.Fatal(err)
	}
	device := kernel.ReferenceIFB("net", "c1")
	if last := result.Interfaces[len(result.Interfaces)-1]; last.Name != device || last.Mac == "" || last.Sandbox != "" {
		t.Errorf("result ends in %+v, want the ifb %s", last, device)
	}
	if got := fmt.Sprint(w.qdiscs("hostend")); got != "[tbf ingress]" {
		t.Errorf("queues of the veth: %s", got)
	}
	if _, err := w.call(spec.Check, "c1", "eth0", both, nil); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if _, err := w.call(spec.Check, "c1", "eth0", strings.Replace(both, "8000000,", "9000000,", 1), nil); err == nil ||
		!strings.Contains(err.Error(), "Rate doesn't match") {
		t.Errorf("CHECK with another rate: %v", err)
	}
	for range 2 {
		if _, err := w.call(spec.Del, "c1", "eth0", both, nil); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if _, err := netlink.LinkByName(device); err == nil {
		t.Errorf("%s is left after DEL", device)
	}
}

// The reference used containerd's burst unchanged. After a swap to our programs, CHECK accepts
// such a queue, and our own, but no other burst.
func TestCheckOfTheReferences(t *testing.T) {
	const sent = `{"runtimeConfig": {"bandwidth": {"ingressRate": 8000000, "ingressBurst": %d}}}`
	w := newWorld(t)
	for burst, want := range map[uint32]bool{math.MaxUint32 / 8: true, 800_000: false} {
		if _, err := w.call(spec.Add, "c1", "eth0", fmt.Sprintf(`{"ingressRate": 8000000, "ingressBurst": %d}`, uint64(burst)*8), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.call(spec.Check, "c1", "eth0", fmt.Sprintf(sent, uint32(math.MaxUint32)), nil); (err == nil) != want {
			t.Errorf("CHECK of a queue with a burst of %d bytes: %v", burst, err)
		}
		w.unshape("hostend")
	}
}

// The name of the reference's ifb does not contain the interface name. Our ifb works with two
// attachments of one container.
func TestTwoAttachmentsOfOneContainer(t *testing.T) {
	w := newWorld(t)
	w.veth("eth1", "hostend1")
	w.prev.Interfaces = append(w.prev.Interfaces, spec.Interface{Name: "hostend1"})
	if _, err := w.call(spec.Add, "c1", "eth0", both, nil); err != nil {
		t.Fatal(err)
	}
	second, err := w.call(spec.Add, "c1", "eth1", both, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(spec.Del, "c1", "eth0", both, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(second.Interfaces[len(second.Interfaces)-1].Name); err != nil {
		t.Errorf("DEL of eth0 took eth1's device: %v", err)
	}
	if _, err := w.call(spec.Del, "c1", "eth1", both, nil); err != nil {
		t.Fatal(err)
	}
}

// A namespace ended without a DEL. What its ADD left does not block the next ADD.
func TestAddAgain(t *testing.T) {
	w := newWorld(t)
	if _, err := w.call(spec.Add, "c1", "eth0", both, nil); err != nil {
		t.Fatal(err)
	}
	first := w.index(kernel.ReferenceIFB("net", "c1"))
	if _, err := w.call(spec.Add, "c1", "eth0", both, nil); !errors.Is(err, unix.EEXIST) {
		t.Errorf("ADD beside a living one: %v", err)
	}
	w.index(kernel.ReferenceIFB("net", "c1")) // the reference's device is still there
	if err := netns.Delete(w.ns); err != nil {
		t.Fatal(err)
	}
	w.ns = nettest.NewNS(t, "bw-addagain2")
	w.prev.Interfaces = []spec.Interface{{Name: "hostend2"}, {Name: "eth0", Sandbox: w.ns}}
	w.veth("eth0", "hostend2")
	if _, err := w.call(spec.Add, "c1", "eth0", both, nil); err != nil {
		t.Fatal(err)
	}
	if w.index(kernel.ReferenceIFB("net", "c1")) == first {
		t.Error("the device is still the first ADD's")
	}
	for _, verb := range []spec.Verb{spec.Check, spec.Del} {
		if _, err := w.call(verb, "c1", "eth0", both, nil); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if _, err := netlink.LinkByName(kernel.ReferenceIFB("net", "c1")); err == nil {
		t.Error("DEL left a device")
	}
}

func (w *world) index(link string) int {
	w.t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Attrs().Index
}

// An ADD that fails at any step leaves no device, no queue and no record.
func TestFaults(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t)
		step := 0
		fault := errors.New("injected")
		_, err := w.call(spec.Add, "c1", "eth0", both, func(string) error {
			if step++; step == n {
				return fault
			}
			return nil
		})
		if err == nil {
			if n < 6 {
				t.Errorf("only %d steps: faults are not injected everywhere", n-1)
			}
			return
		}
		if got := fmt.Sprint(w.qdiscs("hostend")); got != "[]" {
			t.Errorf("fault at step %d leaves queues %s", n, got)
		}
		if _, err := netlink.LinkByName(kernel.ReferenceIFB("net", "c1")); err == nil {
			t.Errorf("fault at step %d leaves the ifb", n)
		}
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "hostend"}}); err != nil {
			t.Fatal(err)
		}
		if err := netns.Delete(w.ns); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPassthroughAndRefusals(t *testing.T) {
	w := newWorld(t)
	if r, err := w.call(spec.Add, "c1", "eth0", `{}`, nil); err != nil || len(r.Interfaces) != 2 {
		t.Errorf("no limits: %+v, %v; want the previous result", r, err)
	}
	if _, err := w.call(spec.Add, "c1", "eth0", `{"prevResult": null}`, nil); err != nil {
		t.Errorf("no limits and no prevResult (the reference panics): %v", err)
	}
	for conf, want := range map[string]string{
		strings.Replace(both, "{", `{"prevResult": null, `, 1):                                                   "must be called as chained plugin",
		strings.Replace(both, "{", `{"prevResult": {"cniVersion":"1.1.0"}, `, 1):                                 "no interfaces provided",
		strings.Replace(both, "{", `{"prevResult": {"cniVersion":"1.1.0","interfaces":[{"name":"other"}]}, `, 1): "no veth peer of container interface found in host ns",
	} {
		if _, err := w.call(spec.Add, "c1", "eth0", conf, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", conf, err, want)
		}
	}
}

func TestGC(t *testing.T) {
	w := newWorld(t)
	if _, err := w.call(spec.Add, "dead", "eth0", both, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(spec.GC, "", "", `{"cni.dev/valid-attachments":[{"containerID":"dead","ifname":"eth0"}]}`, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(kernel.ReferenceIFB("net", "dead")); err != nil {
		t.Fatalf("GC took a valid attachment's device: %v", err)
	}
	if _, err := w.call(spec.GC, "", "", `{"cni.dev/valid-attachments":[]}`, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName(kernel.ReferenceIFB("net", "dead")); err == nil {
		t.Error("GC left the device of a dead attachment")
	}
}
