// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin/patchbay"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// 7.2 A failure fails the pod at once: the next networks are not tried, all that were tried are removed, and the default network, too.
func TestFailureStopsTheRest(t *testing.T) {
	define(t, "shop/edge", edge, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`, "shop/b", `{"cniVersion":"1.0.0","type":"other"}`)
	w := newWorld(t, "edge,a,b")
	w.warm()
	w.tape.fails = "tape ADD net2"
	_ = w.refused(`network shop/a, interface net2: plugin type="tape" failed (add): no`)
	if want := []string{"tape ADD net2", "tape DEL net2"}; !slices.Equal(w.tape.lines, want) {
		t.Errorf("calls %q, want %q", w.tape.lines, want)
	}
	if plan := w.plan(); plan != nil {
		t.Errorf("a plan is left: %+v", plan)
	}
}

// If the removal after a failed ADD fails, too, the plan stays for the DEL that the runtime calls.
func TestPlanOfFailedRemoval(t *testing.T) {
	define(t, "shop/edge", edge, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`, "shop/b", `{"cniVersion":"1.0.0","type":"other"}`)
	w := newWorld(t, "a,edge,b")
	before := w.warm()
	w.fault = func(step string) error {
		if step == "plugin other" {
			w.tape.fails = "tape DEL net1"
			return fmt.Errorf("stopped at %s", step)
		}
		return nil
	}
	_, err := w.call(spec.Add, "")
	if err == nil || !strings.Contains(err.Error(), "stopped at plugin other") || !strings.Contains(err.Error(), `network shop/a, interface net1: plugin type="tape" failed (delete): no`) {
		t.Errorf("ADD: %v", err)
	}
	if plan := w.plan(); plan == nil || len(plan.Begun()) != 3 {
		t.Errorf("plan %+v", plan)
	}
	w.fault, w.tape.fails = nil, ""
	_, err = w.call(spec.Del, "")
	must(t, err)
	leak.NoLeaks(t, before)
}

// 7.2 One DEL that fails does not stop the others, and its error reaches the runtime. The next DEL ends the work.
func TestDelGoesOn(t *testing.T) {
	define(t, "shop/edge", edge, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	w := newWorld(t, "edge,a,edge")
	before := w.warm()
	w.add()
	w.tape.fails = "tape DEL net2"
	_, err := w.call(spec.Del, "")
	if err == nil || !strings.Contains(err.Error(), "network shop/a, interface net2: ") {
		t.Errorf("DEL: %v", err)
	}
	if nettest.HasLink(t, w.ns, "net1") || nettest.HasLink(t, w.ns, "net3") || w.plan() == nil {
		t.Error("DEL stopped at the error, or the plan is gone")
	}
	w.tape.fails = ""
	_, err = w.call(spec.Del, "")
	must(t, err)
	leak.NoLeaks(t, before)
}

// An ADD that is repeated for a living pod fails and changes nothing.
func TestRepeated(t *testing.T) {
	define(t, "shop/store", store)
	w := newWorld(t, "store")
	w.warm()
	w.add()
	before, plan := leak.Must(t), *w.plan()
	_, err := w.call(spec.Add, "")
	if err == nil {
		t.Error("the second ADD succeeded")
	}
	leak.NoLeaks(t, before)
	if again := w.plan(); again == nil || string(again.Interfaces[0].Result) != string(plan.Interfaces[0].Result) || !nettest.HasLink(t, w.ns, "net1") {
		t.Errorf("plan %+v", again)
	}
	_, err = w.call(spec.Del, "")
	must(t, err)
}

// The ADD is killed at each step. DEL then removes everything, and so does a GC after a reboot.
func TestKilledAnywhere(t *testing.T) {
	define(t, "shop/store", store, "infra/edge", edge)
	for n, last := 1, false; !last; n++ {
		w := newWorld(t, `[{"name":"store"},{"name":"edge","namespace":"infra","default-route":["10.91.1.1"]}]`)
		if n == 1 {
			w.warm()
		}
		before := leak.Must(t)
		last = plugintest.Killed(t, &patchbay.Plugin, w.request(spec.Add, ""), n, w.plugins()[1:]...) < n
		if n%2 == 1 {
			_, err := w.call(spec.Del, "")
			must(t, err)
		} else {
			w.reboot()
			_, err := w.call(spec.GC, `,"cni.dev/valid-attachments":[]`)
			must(t, err)
		}
		leak.NoLeaks(t, before)
		if t.Failed() || last {
			t.Logf("killed at %d steps", n)
			return
		}
	}
}

// After a kill, a second ADD of the container replaces what the first one left.
func TestKilledThenAgain(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`, "shop/b", `{"cniVersion":"1.0.0","type":"other"}`)
	w := newWorld(t, "a,b")
	call := w.alone(spec.Add)
	for n, last := 1, false; !last; n++ {
		last = plugintest.Killed(t, &Plugin, call, n, w.plugins()[2:]...) < n
		if _, err := w.invoke(call); err != nil {
			t.Errorf("ADD after a kill at step %d: %v", n, err)
		}
		plan := readPlan(t, "alone")
		if plan == nil || !plan.Complete() {
			t.Errorf("plan after step %d: %+v", n, plan)
		}
		_, err := w.invoke(w.alone(spec.Del))
		must(t, err)
	}
}

// reboot deletes what does not survive one: the namespace with its links, the firewall and /run.
func (w *world) reboot() {
	w.t.Helper()
	must(w.t, netns.Delete(w.ns))
	links, err := nl.Retry(netlink.LinkList)
	must(w.t, err)
	for _, l := range links {
		if l.Type() == "veth" {
			_ = netlink.LinkDel(l) // the kernel deletes it with the namespace, but later
		}
	}
	entries, err := filepath.Glob(filepath.Join(paths.Default().Run, "*"))
	must(w.t, err)
	for _, e := range entries {
		must(w.t, os.RemoveAll(e))
	}
	fw, err := nftables.New()
	must(w.t, err)
	fw.FlushRuleset()
	must(w.t, fw.Flush())
}

// The plan survives a reboot, and DEL needs nothing else to free the addresses.
func TestDelAfterReboot(t *testing.T) {
	define(t, "shop/store", store)
	w := newWorld(t, "store")
	w.warm()
	before := leak.Must(t).Of("file")
	w.add()
	w.reboot()
	define(t)
	w.annotation = `""`
	_, err := w.call(spec.Del, "")
	must(t, err)
	if left := leak.Must(t).Of("file").Beyond(before); len(left) > 0 {
		t.Errorf("left:\n%s", left)
	}
}

// GC keeps what is valid, with its further networks, and removes the rest.
func TestGC(t *testing.T) {
	define(t, "shop/store", store, "infra/edge", edge)
	w := newWorld(t, "store,infra/edge")
	before := w.warm()
	w.add()
	with := leak.Must(t)
	_, err := w.call(spec.GC, `,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
	must(t, err)
	if gone := with.Beyond(leak.Must(t)); len(gone) > 0 {
		t.Errorf("GC removed\n%s", gone)
	}
	_, err = w.call(spec.GC, `,"cni.dev/valid-attachments":[]`)
	must(t, err)
	leak.NoLeaks(t, before)
}

// CHECK notices an interface that is missing, an ADD that was killed, and a lost plan.
func TestCheck(t *testing.T) {
	define(t, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	w := newWorld(t, "a")
	_, err := w.invoke(w.alone(spec.Check))
	if err == nil || !strings.Contains(err.Error(), "their plan is lost") {
		t.Errorf("CHECK without a plan: %v", err)
	}
	plugintest.Killed(t, &Plugin, w.alone(spec.Add), 4, w.plugins()[2:]...)
	if _, err = w.invoke(w.alone(spec.Check)); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("CHECK after a kill: %v", err)
	}
	_, err = w.invoke(w.alone(spec.Add))
	must(t, err)
	_, err = w.invoke(w.alone(spec.Check))
	must(t, err)
	w.tape.fails = "tape CHECK net1"
	if _, err = w.invoke(w.alone(spec.Check)); err == nil || !strings.Contains(err.Error(), "network shop/a, interface net1: ") {
		t.Errorf("CHECK: %v", err)
	}
	_, err = w.invoke(w.alone(spec.Del))
	must(t, err)
}

// A DEL of a container that never had networks succeeds, whatever its annotation is.
func TestDelOfNothing(t *testing.T) {
	for _, annotation := range []string{"", "a", "Not_Valid"} {
		w := newWorld(t, annotation)
		if _, err := w.invoke(w.alone(spec.Del)); err != nil {
			t.Errorf("%q: %v", annotation, err)
		}
	}
}

// The plan does not have the annotations, and no file of the node has one of another program.
func TestOnlyItsAnnotation(t *testing.T) {
	define(t, "shop/store", store)
	w := newWorld(t, "store")
	w.annotation = `"store","example.com/secret":"s3cret"`
	w.add()
	for _, dir := range leak.Dirs() {
		must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // a file that went meanwhile
			}
			if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "s3cret") {
				t.Errorf("%s has an annotation of another program", path)
			}
			return nil
		}))
	}
	_, err := w.call(spec.Del, "")
	must(t, err)
}
