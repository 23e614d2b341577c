// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// Two networks have the same subnet, or one network lost its address files. Both assign one
// address twice. Whichever attachment is removed, in whatever way, the others stay masqueraded.
func TestSameAddress(t *testing.T) {
	few := []string{"c", "b c", "c b"}
	for way, orders := range map[string][]string{
		"DEL": {"a", "b", "c", "a b", "b c", "c b", "a c", "c a"},
		"GC":  few, "DEL without record": few, "GC of a torn record": few, "DEL of an earlier release's": few,
	} {
		for _, order := range orders {
			t.Run(way+" "+order, func(t *testing.T) {
				w, outside, uplink := outsides(t, "IPv4")
				pods := map[string]*endpointtest.Pod{"a": same(w, "a"), "b": same(w, "b"), "c": same(w, "c")}
				gone := strings.Fields(order)
				for _, name := range []string{"a", "b", "c"} {
					pods[name].Add()
				}
				for i, name := range gone {
					leave(w, way, pods, name, gone[:i+1])
				}
				if !slices.Contains(gone, "a") { // the host's route leads to the first bridge
					w.Want("traffic", pods["a"].Ask("tcp", outside), "client "+uplink)
				}
				for name, p := range pods {
					if !slices.Contains(gone, name) {
						onlyReached(w, name, p.Do(spec.Check))
						belongToOneOf(w, pods, gone)
					}
				}
			})
		}
	}
}

// onlyReached checks that CHECK reports only one problem: the host cannot reach the pod, because
// the route to the first bridge remains.
func onlyReached(w *endpointtest.World, name string, err error) {
	w.Helper()
	by, want := map[string]string{"b": "tbr1", "c": "tbr3"}[name], "<nil>"
	if by != "" {
		want = "the host reaches 10.9.0.5 by tbr0 instead of " + by
	}
	w.Want("CHECK of "+name, fmt.Sprint(err), want)
}

func same(w *endpointtest.World, name string) *endpointtest.Pod {
	bridge := map[string]string{"a": "tbr0", "b": "tbr1", "c": "tbr3"}[name]
	w.Cleanup(func() { w.Host.Delete(bridge) })
	return w.Pod(name, fmt.Sprintf(`"bridge": %q, "isDefaultGateway": true, "ipMasq": true, `, bridge)+endpointtest.Static("10.9.0.5/24"))
}

// leave removes a pod in one way. gone lists all pods that are dead by then.
func leave(w *endpointtest.World, way string, pods map[string]*endpointtest.Pod, name string, gone []string) {
	w.Helper()
	file := filepath.Join(paths.Default().Run, "attachments/net", string(owner.Of("net", name, "eth0"))+".bridge")
	switch way {
	case "DEL without record":
		endpointtest.Must(w, os.Remove(file))
	case "DEL of an earlier release's":
		text, err := os.ReadFile(file)
		endpointtest.Must(w, err)
		noted := regexp.MustCompile(`,"displaced":\[[^]]*\],"noted":true`)
		w.Want("notes", fmt.Sprint(noted.Match(text)), "true")
		endpointtest.Must(w, os.WriteFile(file, noted.ReplaceAll(text, nil), 0o600))
	case "GC of a torn record":
		endpointtest.Must(w, os.Truncate(file, 5))
	}
	if strings.HasPrefix(way, "DEL") {
		endpointtest.Must(w, pods[name].Do(spec.Del))
		return
	}
	var valid []string
	for other := range pods {
		if !slices.Contains(gone, other) {
			valid = append(valid, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, other))
		}
	}
	gc := *pods[name]
	gc.Conf += fmt.Sprintf(`, "cni.dev/valid-attachments": [%s]`, strings.Join(valid, ","))
	gc.Result, gc.Call.NetNS, gc.Call.ContainerID, gc.Call.IfName = nil, "", "", ""
	endpointtest.Must(w, gc.Do(spec.GC))
}

// belongToOneOf checks that living pods own the two elements of the address. The DEL of any other
// owner might remove them.
func belongToOneOf(w *endpointtest.World, pods map[string]*endpointtest.Pod, gone []string) {
	w.Helper()
	found := elementsOf(w.T, "10.9.0.5") // one element for each prefix length
	slices.Sort(found)
	found = slices.Compact(found)
	for _, e := range found {
		for name := range pods {
			if slices.Contains(gone, name) && strings.Contains(e, "/"+name+"/") {
				w.Errorf("%s, which is gone", e)
			}
		}
	}
	w.Want("elements", fmt.Sprint(len(found)), "2")
}
