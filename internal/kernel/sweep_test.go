// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// A GC that was killed, or could not remove its claim, leaves a file. The next GC of the network removes it,
// but not a claim that another gc holds, and none of another network.
func TestGCRemovesOldClaims(t *testing.T) {
	c := newCaller(t)
	killed, working := record.New(paths.Default().Run), record.New(paths.Default().Run)
	defer working.Close()
	for _, claim := range []struct {
		by          *record.Dir
		network, id string
	}{{killed, c.network, "killed"}, {working, c.network, "working"}, {killed, "another", "killed"}} {
		if _, err := claim.by.Claim(claim.network, c.owner(claim.id)); err != nil {
			t.Fatal(err)
		}
	}
	killed.Close()
	_, err := c.collect("bridge", "", nothing)
	c.must(err)
	if left := c.files(); len(left) != 1 || left[0] != string(c.owner("working"))+".gc~" {
		t.Errorf("left: %v", left)
	}
	c.network = "another"
	if left := c.files(); len(left) != 1 {
		t.Errorf("of another network: %v", left)
	}
}

// A GC removes what is not on its list. It keeps what is on the list, what is newer than the list, what another
// runtime made, and what another process works on. The addresses of all that it keeps stay, but those of its list
// need no mention.
func TestSweepKeeps(t *testing.T) {
	c := newCaller(t)
	for _, id := range []string{"stale", "valid", "foreign", "busy"} {
		c.record("bridge", id, &record.Record{})
	}
	living := c.netNS
	c.netNS = nettest.NewNS(t, "sweepdead")
	c.record("bridge", "foreigndead", &record.Record{})
	c.must(netns.Delete(c.netNS))
	c.netNS = living
	for _, id := range []string{"foreign", "foreigndead"} {
		c.edit(id, func(rec *record.Record) { rec.Runtime = "other" })
	}
	c.record("firewall", "busy", &record.Record{})
	working := record.New(paths.Default().Run)
	if _, err := working.ReadLocked(c.network, c.owner("busy"), "firewall"); err != nil {
		t.Fatal(err)
	}
	listed := time.Now()
	time.Sleep(20 * time.Millisecond) // files are dated by the clock's ticks
	c.record("bridge", "newer", &record.Record{})
	more, err := json.Marshal(listed)
	c.must(err)
	did, err := c.collect("bridge", `,"patchbay/listed":`+string(more), nothing, "valid")
	c.must(err)
	if want := []string{"foreigndead", "stale"}; !slices.Equal(did.removed, want) {
		t.Errorf("removed %v, want %v", did.removed, want)
	}
	if got, want := ids(did.spared), []string{"busy", "foreign", "newer"}; !slices.Equal(got, want) {
		t.Errorf("the addresses of %v stay, want %v", got, want)
	}
	working.Close()
	did, err = c.collect("bridge", "", nothing, "valid", "foreign", "newer")
	c.must(err)
	if !slices.Equal(did.removed, []string{"busy"}) || len(did.spared) > 0 {
		t.Errorf("after the work: %+v", did)
	}
}

// Another runtime's attachment stays if its veth pair is in use, although its namespace seems gone: this process may not
// see what holds it.
func TestSweepKeepsAPairInUse(t *testing.T) {
	c := newCaller(t)
	for _, id := range []string{"carries", "down"} {
		c.record("bridge", id, &record.Record{Links: []string{c.owner(id).LinkName("veth", 0)}})
		c.edit(id, func(rec *record.Record) {
			rec.Runtime, rec.NetNS = "other", filepath.Join(filepath.Dir(c.netNS), "gone")
			rec.NetNSMark.Ino = 1 // no process has it
		})
		c.pair(id, id == "carries")
	}
	did, err := c.collect("bridge", "", nothing)
	c.must(err)
	if !slices.Equal(did.removed, []string{"down"}) || !slices.Equal(ids(did.spared), []string{"carries"}) {
		t.Errorf("%+v", did)
	}
}

// A namespace that is not at its path, but that something holds, lives for others. For an ADD of the same attachment it is over.
func TestLives(t *testing.T) {
	c := newCaller(t)
	c.record("bridge", "c1", &record.Record{})
	c.must(c.do(spec.Del, "bridge", "c2", "", func(_ context.Context, r *plugin.Request) error {
		rec, err := Of(r).Records.Read(c.network, c.owner("c1"), "bridge")
		if err != nil || rec == nil {
			return fmt.Errorf("%v, %w", rec, err)
		}
		if k := Of(r); !k.Lives(rec) || k.Over(rec) {
			t.Error("at its path")
		}
		rec.NetNS = filepath.Join(filepath.Dir(c.netNS), "gone")
		if k := Of(r); !k.Lives(rec) || !k.Over(rec) {
			t.Error("held")
		}
		rec.NetNSMark.Ino = 1
		if k := Of(r); k.Lives(rec) || !k.Over(rec) {
			t.Error("gone")
		}
		return nil
	}))
}

func ids(list []spec.AttachmentKey) (ids []string) {
	for _, a := range list {
		ids = append(ids, a.ContainerID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// edit changes a record of the plugin bridge.
func (c *caller) edit(id string, change func(*record.Record)) {
	c.t.Helper()
	d := record.New(paths.Default().Run)
	defer d.Close()
	rec, err := d.Read(c.network, c.owner(id), "bridge")
	c.must(err)
	change(rec)
	c.must(d.Rewrite(rec))
}

// A removal that fails, or is not finished, keeps the record and the address. Only a failure is the GC's error.
// The next GC tries again.
func TestSweepTriesAgain(t *testing.T) {
	broken := errors.New("the link stays")
	for about, failure := range map[string]error{"failed": broken, "unfinished": fmt.Errorf("later: %w", ErrUnfinished)} {
		t.Run(about, func(t *testing.T) {
			c := newCaller(t)
			c.network, c.netNS = about, nettest.NewNS(t, "again"+about)
			c.record("bridge", "c1", &record.Record{})
			did, err := c.collect("bridge", "", func(*record.Record) error { return failure })
			if errors.Is(failure, broken) != (err != nil) || err != nil && !strings.Contains(err.Error(), broken.Error()) {
				t.Errorf("error %v", err)
			}
			if err == nil && !strings.Contains(c.log.String(), "not finished") {
				t.Errorf("no warning: %s", c.log.String())
			}
			if !slices.Equal(ids(did.spared), []string{"c1"}) || len(c.files()) != 1 {
				t.Errorf("spared %v, records %v", did.spared, c.files())
			}
			did, err = c.collect("bridge", "", nothing)
			c.must(err)
			if len(did.removed) != 1 || len(did.spared) > 0 || len(c.files()) > 0 {
				t.Errorf("again: %+v, records %v", did, c.files())
			}
		})
	}
}

// Without a list a GC removes nothing.
func TestSweepWithoutList(t *testing.T) {
	c := newCaller(t)
	c.record("bridge", "c1", &record.Record{})
	c.must(c.do(spec.GC, "bridge", "", "", func(ctx context.Context, r *plugin.Request) error {
		return Of(r).Sweep(ctx, r, func(*record.Record) error { return errors.New("called") })
	}))
	if len(c.files()) != 1 {
		t.Errorf("records: %v", c.files())
	}
}

// DEL gets the record, or what else is known if there is none or it cannot be read. It deletes the record only if
// the removal succeeded.
func TestDetach(t *testing.T) {
	c := newCaller(t)
	del := func(result error) (got string, err error) {
		err = c.do(spec.Del, "bridge", "c1", "", func(_ context.Context, r *plugin.Request) error {
			return Of(r).Detach(r, func() *record.Record { return &record.Record{Links: []string{"derived"}} }, func(rec *record.Record) error {
				got = strings.Join(rec.Links, ",") + " of " + rec.ContainerID
				return result
			})
		})
		return got, err
	}
	check := func(when, wantGot string, fails bool, result error, records int) {
		t.Helper()
		got, err := del(result)
		if got != wantGot || fails != (err != nil) || len(c.files()) != records {
			t.Errorf("%s: %q, %v, records %v", when, got, err, c.files())
		}
	}
	c.record("bridge", "c1", &record.Record{Links: []string{"recorded"}})
	check("a failure", "recorded of c1", true, errors.New("busy"), 1)
	check("unfinished", "recorded of c1", false, ErrUnfinished, 1)
	check("success", "recorded of c1", false, nil, 0)
	check("no record", "derived of c1", false, nil, 0)
	c.record("bridge", "c1", &record.Record{Links: []string{"recorded"}})
	path := filepath.Join(paths.Default().Run, "attachments", c.network, c.files()[0])
	c.must(os.WriteFile(path, []byte("{"), 0o600))
	check("a torn record", "derived of c1", false, nil, 0)
}
