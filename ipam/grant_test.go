// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/ipam"
)

func grantOf(why string, blocks ...string) func(*ipam.Granted) *ipam.Granted {
	return func(*ipam.Granted) *ipam.Granted {
		g := &ipam.Granted{Why: why}
		for _, b := range blocks {
			g.Blocks = append(g.Blocks, netip.MustParsePrefix(b))
		}
		return g
	}
}

// A grant limits what ADD gives out, and nothing else.
func TestGrant(t *testing.T) {
	s := &ipam.FileStore{DataDir: t.TempDir(), Network: "lan", IndexDir: t.TempDir() + "/ipam"}
	set := []ipam.RangeSet{Set(t, "10.200.3.0/24")}
	add := func(id string) error {
		tx, err := s.Begin(t.Context(), ipam.Write)
		if err != nil {
			return err
		}
		defer tx.Close()
		_, err = ipam.Allocate(tx, &ipam.Request{Holder: ipam.Holder{ID: id, IfName: "eth0"}, Sets: set})
		return errors.Join(err, ipam.Status(tx, set, nil))
	}
	if err := add("first"); err != nil {
		t.Fatalf("without a grant: %v", err)
	}
	file := filepath.Join(s.DataDir, "lan", ipam.GrantFile)
	block := []netip.Prefix{netip.MustParsePrefix("10.200.3.0/24")}
	for _, c := range []struct {
		name, want string
		grant      func(*ipam.Granted) *ipam.Granted
		text       string
	}{
		{"this block", "", grantOf("", "10.200.3.0/24"), ""},
		{"a wider one beside another", "", grantOf("", "10.9.0.0/24", "10.200.0.0/16"), ""},
		{"a part of it", "must not give out addresses of 10.200.3.0/24: it may give out those of [10.200.3.0/25] (" + file, grantOf("", "10.200.3.0/25"), ""},
		{"nothing", "must not give out addresses of 10.200.3.0/24: block 10.200.3.0/24 belongs to h2 now (" + file, grantOf("block 10.200.3.0/24\nbelongs to h2 now"), ""},
		{"an empty file", "read " + file + ": it does not begin", nil, "\n"},
		{"a damaged one", "read " + file, nil, "# The blocks from which this host may give out addresses (docs/hosts.md).\n10.200.3"},
		{"none again", "", func(*ipam.Granted) *ipam.Granted { return nil }, ""},
	} {
		if c.grant == nil {
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if _, err := s.ChangeGrant(t.Context(), c.grant, nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		before, _ := s.Reserved(block)
		err := add(strings.ReplaceAll(c.name, " ", "-"))
		after, _ := s.Reserved(block)
		if c.want == "" && (err != nil || after != before+1) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || after != before) {
			t.Errorf("%s: %d, then %d reserved: %v", c.name, before, after, err)
		}
	}
}

// Whoever withdraws a grant counts every address that was given out, however many ADDs run.
func TestGrantWithdrawn(t *testing.T) {
	set := []ipam.RangeSet{Set(t, "10.200.3.0/24")}
	block := []netip.Prefix{netip.MustParsePrefix("10.200.3.0/24")}
	late := 0
	for range 20 {
		s := &ipam.FileStore{DataDir: t.TempDir(), Network: "lan"}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				tx, err := s.Begin(t.Context(), ipam.Write)
				if err != nil {
					t.Error(err)
					return
				}
				defer tx.Close()
				if _, err = ipam.Allocate(tx, &ipam.Request{Holder: ipam.Holder{ID: fmt.Sprint(i), IfName: "eth0"}, Sets: set}); err != nil && !errors.Is(err, ipam.ErrNotGranted) {
					t.Error(err)
				}
			})
		}
		counted, err := s.ChangeGrant(t.Context(), grantOf("it was removed"), block)
		wg.Wait()
		if n, err2 := s.Reserved(block); n != counted || err != nil || err2 != nil {
			t.Fatalf("%d reserved, %d counted: %v %v", n, counted, err, err2)
		}
		late += 8 - counted
	}
	if late == 0 {
		t.Error("every ADD was before the withdrawal")
	}
}

// A change that keeps what it finds, as before a host gives back a block, does not lift the limit of a damaged
// grant.
func TestDamagedGrantStays(t *testing.T) {
	s := &ipam.FileStore{DataDir: t.TempDir(), Network: "lan"}
	if _, err := s.ChangeGrant(t.Context(), grantOf("", "10.200.3.0/24"), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.DataDir, "lan", ipam.GrantFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.ChangeGrant(t.Context(), func(now *ipam.Granted) *ipam.Granted { return now }, nil)
	if g, rerr := s.Grant(); err != nil || rerr == nil && (g == nil || len(g.Blocks) > 0) {
		t.Errorf("the grant is %+v (%v, %v)", g, err, rerr)
	}
	if _, err := s.ChangeGrant(t.Context(), func(*ipam.Granted) *ipam.Granted { return nil }, nil); err != nil {
		t.Error(err)
	}
	if g, err := s.Grant(); g != nil || err != nil {
		t.Errorf("removed: %+v, %v", g, err)
	}
}
