// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// Stray is an object without a known attachment.
type Stray struct {
	Object
	State   State  `json:"state"`
	Why     string `json:"why"`
	Removed bool   `json:"removed"`
	Error   string `json:"error,omitempty"`

	// Fix is what only an operator can do about an object that gc keeps; doctor reports
	// it.
	Fix string `json:"fix,omitempty"`

	remove func(context.Context, *kernel.Kernel) error
}

// Said is the reason for the verdict, with what to do.
func (s *Stray) Said() string {
	if s.Fix == "" {
		return s.Why
	}
	return s.Why + ": " + s.Fix
}

// strays lists truncated files, facts without a holder, ifbs that no filter redirects to,
// and meshes whose agent is gone.
func (c *collector) strays(ev *evidence) []*Stray {
	list := c.strayFiles("cached result", filepath.Join(c.Paths.CNI, "results", "*"), tornJSON)
	list = append(list, c.strayFiles("temporary file", filepath.Join(c.Paths.CNI, ".result-*"), anyFile)...)
	list = append(append(append(list, c.strayFacts(ev)...), c.foreignHolders(ev)...), c.strayIFBs(ev)...)
	list = append(append(list, c.strayAccepts(ev)...), c.strayMeshes(ev)...)
	return append(append(list, c.strayElements(ev)...), c.danglingVeths(ev)...)
}

func anyFile(string) bool { return true }

// tornJSON reports whether a file is empty or truncated.
func tornJSON(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && !json.Valid(data)
}

// strayFiles returns regular files older than the grace period, since libcni does not
// write them atomically: a file written since gc began may be incomplete.
func (c *collector) strayFiles(kind, pattern string, stray func(string) bool) (list []*Stray) {
	found, _ := filepath.Glob(pattern)
	for _, path := range found {
		fi, err := os.Lstat(path)
		if err != nil || !fi.Mode().IsRegular() || c.fresh(fi.ModTime()) || !stray(path) {
			continue
		}
		s := &Stray{
			Object: Object{kind, path}, State: Dead, Why: "it was truncated while it was written",
			remove: func(context.Context, *kernel.Kernel) error { return removeOld(path, fi.ModTime()) },
		}
		if ahead := fi.ModTime().Sub(c.world.now); ahead > 0 && c.Grace > 0 {
			s.State, s.Why = Unsure, fmt.Sprintf(aheadOfClock, ahead.Round(time.Second))
		}
		list = append(list, s)
	}
	return list
}

// fresh reports whether a file written at this time is too young to judge. A time in the
// future gives no age.
func (c *collector) fresh(written time.Time) bool {
	if age := c.world.now.Sub(written); age >= 0 {
		return age < c.Grace
	}
	return !written.After(time.Now())
}

// removeOld deletes a file unless it has been written again.
func removeOld(path string, was time.Time) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.ModTime().Equal(was) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// strayFacts are facts that a killed process left without a holder.
func (c *collector) strayFacts(ev *evidence) (list []*Stray) {
	holders, facts, _ := ev.k.Records.Facts() // gather reports broken ones
	for _, f := range facts {
		if len(holders[f.Name]) > 0 {
			continue
		}
		list = append(list, &Stray{
			Object: Object{"shared fact", f.Name}, State: Dead, Why: "no attachment holds it",
			remove: func(ctx context.Context, k *kernel.Kernel) error {
				return errors.Join(netstate.ReleaseFact(ctx, k.Records, f.Name, "", k.NFT), k.NFT.Commit(ctx))
			},
		})
	}
	return list
}

// strayIFBs are devices of the bandwidth plugins whose veth is gone: no filter redirects
// to them. An ADD makes the device before the filter, and a link has no age, so gc must
// have seen it before.
func (c *collector) strayIFBs(ev *evidence) (list []*Stray) {
	host, err := ev.k.Host()
	if err != nil {
		return nil
	}
	links, err := host.LinkList()
	if err != nil {
		return nil
	}
	targets := redirects(host, links)
	for _, l := range links {
		at := l.Attrs()
		if l.Type() != "ifb" || !strings.HasPrefix(at.Name, "bwp") || at.Alias != "" || targets[at.Index] || ev.claimed(at.Index) {
			continue
		}
		s := &Stray{Object: Object{"link", at.Name}, State: Dead, Why: "no traffic is redirected to it"}
		s.remove = func(_ context.Context, k *kernel.Kernel) error {
			host, err := k.Host()
			if err != nil {
				return err
			}
			return deleteLink(host, link{at.Name, at.Index})
		}
		c.ageless(s, key("ifb", fmt.Sprint(at.Name, at.Index)))
		list = append(list, s)
	}
	return list
}

// ageless keeps an object without an age of its own until gc has known it for a while.
func (c *collector) ageless(s *Stray, k owner.Key) {
	if least := c.world.least(); c.world.now.Sub(c.seen.since(k, c.world.now)) < least {
		s.State, s.Why = Unsure, fmt.Sprintf("%s, but gc has known it for less than %v", s.Why, least)
	}
}

// claimed reports whether a known attachment has the link.
func (ev *evidence) claimed(index int) bool {
	for _, a := range ev.all {
		for _, l := range a.links {
			if l.index == index {
				return true
			}
		}
	}
	return false
}

// redirects are the links that other links' filters redirect packets to.
func redirects(host *nl.Conn, links []netlink.Link) map[int]bool {
	to := make(map[int]bool)
	for _, l := range links {
		filters, err := host.FilterList(l, netlink.MakeHandle(0xffff, 0)) // ingress
		if err != nil {
			continue
		}
		for _, f := range filters {
			for _, a := range actions(f) {
				if m, ok := a.(*netlink.MirredAction); ok {
					to[m.Ifindex] = true
				}
			}
		}
	}
	return to
}

func actions(f netlink.Filter) []netlink.Action {
	switch f := f.(type) {
	case *netlink.U32:
		return f.Actions
	case *netlink.MatchAll:
		return f.Actions
	case *netlink.BpfFilter:
		return nil
	}
	return nil
}

// applyStrays removes the dead ones.
func (c *collector) applyStrays(ctx context.Context, list []*Stray) error {
	s := c.NewSession()
	defer s.Close()
	var errs []error
	for _, x := range list {
		if x.State != Dead {
			continue
		}
		err := x.remove(ctx, kernel.OfSession(s))
		if x.Removed = err == nil; err != nil {
			x.Error = err.Error()
			errs = append(errs, fmt.Errorf("remove %s %s: %w", x.Kind, x.Name, err))
		}
	}
	return errors.Join(errs...)
}
