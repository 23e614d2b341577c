// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// caller calls one host-local program on one data directory.
type caller struct {
	invoker invoke.Invoker
	path    []string
	netns   string
	conf    string // with %s for the data directory
	dir     string
}

func (c *caller) call(verb spec.Verb, id, ifName, args string) ([]byte, error) {
	return c.invoker.Invoke(context.Background(), "host-local", &spec.Call{
		Verb: verb, ContainerID: id, IfName: ifName, NetNS: c.netns, Path: c.path, Args: args,
		Config: []byte(fmt.Sprintf(c.conf, c.dir)),
	})
}

// outcome is the result without its formatting, or the message.
func outcome(out []byte, err error) string {
	if err != nil {
		return "error: " + spec.AsError(err).Msg
	}
	var v any
	if len(out) == 0 {
		return ""
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return err.Error()
	}
	data, _ := json.Marshal(v)
	return string(data)
}

func ours(t *testing.T) invoke.Invoker {
	run := t.TempDir()
	return &plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Paths.Run = run
		return s
	}}
}

const swapConf = `{"cniVersion":"1.0.0","name":"net","type":"x","ipam":{"type":"host-local","dataDir":%q,
	"routes":[{"dst":"0.0.0.0/0"}],
	"ranges":[[{"subnet":"10.1.0.0/29"},{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.250","gateway":"10.2.0.252"}],
		[{"subnet":"fd00::/124","rangeStart":"fd00::8"}]]}}`

// TestSwap drives two directories through the same random calls. The reference's program works
// alone in one; in the other, the reference and we take turns at random. After each call, the
// answers and every byte of the directories must be equal. So each program finds what it would
// have written itself.
func TestSwap(t *testing.T) {
	netns := nettest.NewNS(t, "swap")
	ref := []string{reftest.Plugins(t)}
	own := ours(t)
	alone := &caller{&invoke.Exec{}, ref, netns, swapConf, t.TempDir()}
	mixed := &caller{nil, nil, netns, swapConf, t.TempDir()}
	rng := rand.New(rand.NewPCG(3, 4))
	held := map[string]bool{}
	for step := range draw.Number(t, "PATCHBAY_SWAP_CALLS", 120, 600) {
		mixed.invoker, mixed.path = own, []string{t.TempDir()}
		if rng.IntN(2) == 0 {
			mixed.invoker, mixed.path = alone.invoker, ref
		}
		id, ifName := fmt.Sprint("c", rng.IntN(14)), fmt.Sprint("eth", rng.IntN(2))
		verb, args := spec.Add, ""
		switch rng.IntN(10) {
		case 0, 1, 2, 3:
			verb = spec.Del
		case 4:
			verb = spec.Check
		case 5:
			// If such a call fails half way, the reference releases the address of a living owner. We do not.
			if !held[id+ifName] {
				args = fmt.Sprintf("IgnoreUnknown=1;IP=10.1.0.%d", rng.IntN(9))
			}
		}
		want := outcome(alone.call(verb, id, ifName, args))
		got := outcome(mixed.call(verb, id, ifName, args))
		if got != want {
			t.Fatalf("step %d, %s %s/%s %s:\n got %s\nwant %s", step, verb, id, ifName, args, got, want)
		}
		if verb == spec.Add && !strings.HasPrefix(got, "error") {
			held[id+ifName] = true
		} else if verb == spec.Del {
			delete(held, id+ifName)
		}
		if a, b := tree(t, alone.dir), tree(t, mixed.dir); a != b {
			t.Fatalf("step %d, %s %s/%s: the reference leaves\n%s\nwe leave\n%s", step, verb, id, ifName, a, b)
		}
	}
}

func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		var data []byte
		if !info.IsDir() {
			data, err = os.ReadFile(path)
		}
		fmt.Fprintf(&out, "%s %v %q\n", rel, info.Mode(), data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestSwapTogether runs both programs on one directory at the same time. No address may be
// given out twice, none may be lost.
func TestSwapTogether(t *testing.T) {
	netns := nettest.NewNS(t, "together")
	ref := []string{reftest.Plugins(t)}
	conf := `{"cniVersion":"1.0.0","name":"net","ipam":{"type":"host-local","dataDir":%q,"subnet":"10.1.0.0/24"}}`
	dir := t.TempDir()
	callers := []*caller{
		{&invoke.Exec{}, ref, netns, conf, dir},
		{ours(t), []string{t.TempDir()}, netns, conf, dir},
	}
	type answer struct {
		id, addr string
		err      error
	}
	each := draw.Number(t, "PATCHBAY_SWAP_EACH", 15, 60)
	answers := make(chan answer)
	for n, c := range callers {
		go func() {
			for i := range each {
				id := fmt.Sprintf("c%d-%d", n, i)
				out, err := c.call(spec.Add, id, "eth0", "")
				var r struct{ IPs []struct{ Address string } }
				if err == nil {
					err = json.Unmarshal(out, &r)
				}
				if err == nil && len(r.IPs) == 1 {
					answers <- answer{id, r.IPs[0].Address, nil}
				} else {
					answers <- answer{id, "", fmt.Errorf("%s: %w", out, err)}
				}
			}
		}()
	}
	seen := map[string]string{}
	for range 2 * each {
		a := <-answers
		if a.err != nil || seen[a.addr] != "" {
			t.Fatalf("%s got %s, which is %s's: %v", a.id, a.addr, seen[a.addr], a.err)
		}
		seen[a.addr] = a.id
	}
	for i := range each { // each program releases what the other one took
		for n := range callers {
			if _, err := callers[1-n].call(spec.Del, fmt.Sprintf("c%d-%d", n, i), "eth0", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left := tree(t, dir); strings.Contains(left, "eth0") {
		t.Errorf("left behind:\n%s", left)
	}
}

// A grant limits our program, whose error names it. The reference's program works as if it were not there.
func TestSwapWithGrant(t *testing.T) {
	netns := nettest.NewNS(t, "granted")
	dir := t.TempDir()
	ref := &caller{&invoke.Exec{}, []string{reftest.Plugins(t)}, netns, swapConf, dir}
	own := &caller{ours(t), []string{t.TempDir()}, netns, swapConf, dir}
	s := &ipam.FileStore{DataDir: dir, Network: "net"}
	if _, err := s.ChangeGrant(t.Context(), func(*ipam.Granted) *ipam.Granted { return &ipam.Granted{Why: "the network was removed"} }, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := own.call(spec.Add, "c1", "eth0", ""); spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "the network was removed") {
		t.Errorf("ours: %v", err)
	}
	for _, verb := range []spec.Verb{spec.Add, spec.Del} {
		if _, err := ref.call(verb, "c2", "eth0", ""); err != nil {
			t.Errorf("%s of the reference: %v", verb, err)
		}
	}
	if g, err := s.Grant(); err != nil || g == nil {
		t.Errorf("the reference removed the grant: %v", err)
	}
}
