// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
)

// guarded counts its plans. Another process changes the ruleset during the second plan. The first
// plan only leads to taking the lock.
type guarded struct {
	plans int
	other func()
}

func (g *guarded) String() string { return "guarded work" }

func (g *guarded) Guarded() {}

func (g *guarded) Plan(*Conn) (func(*nftables.Conn) error, error) {
	if g.plans++; g.plans == 2 && g.other != nil {
		g.other()
	}
	return func(*nftables.Conn) error { return nil }, nil
}

// Guarded work is planned again if another process changed anything since.
func TestGuarded(t *testing.T) {
	c, d := open(t), Open("")
	defer d.Close() //nolint:errcheck // a test's socket
	for i, test := range []struct {
		other func()
		want  int
	}{{nil, 2}, {func() { d.Add(masqOf(testOwner)); commit(t, d) }, 3}} {
		work := &guarded{other: test.other}
		c.Queue(work)
		mine := port(uint16(80+i), "10.1.0.5:80", testOwner)
		c.Add(mine)
		commit(t, c)
		mustGet(t, c, mine)
		if work.plans != test.want {
			t.Errorf("planned %d times, want %d", work.plans, test.want)
		}
	}
}

// busy is Guarded work during whose first plans another process changes the ruleset.
type busy struct{ guarded }

func (b *busy) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	if b.plans++; b.plans < 25 {
		b.other()
	}
	return func(*nftables.Conn) error { return nil }, nil
}

// Guarded work finds a moment between the transactions of others, even if there are many.
func TestGuardedAmongMany(t *testing.T) {
	c, d := open(t), Open("")
	defer d.Close() //nolint:errcheck // a test's socket
	n := uint16(0)
	work := &busy{guarded{other: func() { n++; d.Add(port(1000+n, "10.1.0.9:80", testOwner)); commit(t, d) }}}
	c.Queue(work)
	mine := port(80, "10.1.0.5:80", testOwner)
	c.Add(mine)
	commit(t, c)
	mustGet(t, c, mine)
}

// If work has nothing to change, Commit sends no transaction, whose answer would never come.
func TestNothingToSend(t *testing.T) {
	c := open(t)
	c.Queue(&guarded{})
	commit(t, c)
}

// light is work that needs no lock.
type light struct{ guarded }

func (l *light) Light() bool { return true }

// Only work that changes more than elements takes the lock. Commit then reads the kernel's state
// again.
func TestLight(t *testing.T) {
	c := open(t)
	work := &light{}
	c.Queue(work)
	c.Add(port(80, "10.1.0.5:80", testOwner))
	commit(t, c)
	if work.plans != 1 {
		t.Errorf("planned %d times", work.plans)
	}
}
