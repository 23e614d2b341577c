// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// TestChurn times five elements of an attachment, with 0 and with 20,000 others in the table:
// adding them, removing them, and adding while another process adds and removes all the time. Each
// measurement has a socket of its own, as a plugin process has, and includes closing it. Waits for
// RCU dominate the times. The test checks that removal by expiry does not wait for RCU, and that no
// time grows with the table.
//
// The bounds are generous; the log has the numbers. With -short, as under an emulated
// kernel, the test uses smaller numbers and no bounds.
func TestChurn(t *testing.T) {
	for _, how := range []struct {
		name   string
		expiry expiry
	}{{"expire", expiryWorks}, {"delete", expiryIgnored}} {
		t.Run(how.name, func(t *testing.T) {
			if how.expiry == expiryWorks {
				nettest.Need(t, canExpire(t))
			}
			standing := 20000
			if testing.Short() {
				standing = 1000
			}
			none, many := churn(t, how.expiry, 0), churn(t, how.expiry, standing)
			none.log(t, 0)
			many.log(t, standing)
			if testing.Short() {
				return
			}
			grown := many.beyond(none, how.expiry == expiryWorks)
			for range 10 { // real growth repeats; delays by other processes do not
				if len(grown) > 0 {
					grown = measure(t, how.expiry).beyond(none, how.expiry == expiryWorks)
				}
			}
			for _, what := range grown {
				t.Error(what)
			}
		})
	}
}

// canExpire removes an element to find out whether this kernel updates timeouts.
func canExpire(t *testing.T) nettest.Feature {
	return nettest.Feature{Name: "update of an element's timeout (Linux 6.12)", Probe: func() error {
		c := open(t)
		c.Add(attachment()...)
		commit(t, c)
		c.Remove(attachment()...)
		commit(t, c)
		if works, _ := c.ExpiryWorks(); !works {
			return errors.New("an element that was added again with a timeout stays")
		}
		return nil
	}}
}

// times are the durations of one operation.
type times []time.Duration

func (d times) at(percent int) time.Duration {
	slices.Sort(d)
	return d[(len(d)-1)*percent/100]
}

type churnTimes struct{ add, remove, others times }

func (c churnTimes) log(t *testing.T, n int) {
	for _, x := range []struct {
		name string
		d    times
	}{{"add", c.add}, {"remove", c.remove}, {"add beside a churning process", c.others}} {
		t.Logf("at %d elements: %s: p50 %v, p95 %v", n, x.name, x.d.at(50).Round(time.Microsecond), x.d.at(95).Round(time.Microsecond))
	}
}

// beyond compares the times at 20,000 elements with those at none, and names those that are
// too large.
func (c churnTimes) beyond(none churnTimes, expires bool) (all []string) {
	flat := func(what string, many, few, slack time.Duration) {
		if many > 3*few+slack {
			all = append(all, fmt.Sprintf("%s grows: %v at none, %v at 20,000", what, few, many))
		}
	}
	flat("add", c.add.at(50), none.add.at(50), time.Millisecond)
	flat("remove", c.remove.at(50), none.remove.at(50), 20*time.Millisecond)
	flat("somebody else's add", c.others.at(50), none.others.at(50), 10*time.Millisecond)
	if got := c.add.at(50); got > 5*time.Millisecond {
		all = append(all, fmt.Sprintf("add takes %v", got))
	}
	if got := c.others.at(50); expires && got > 5*time.Millisecond {
		all = append(all, fmt.Sprintf("expiry stalls others: their add takes %v", got))
	}
	return all
}

// churn measures with n other elements in the table.
func churn(t *testing.T, how expiry, n int) churnTimes {
	c := open(t)
	for i := range n {
		c.Add(churnElement(200, i))
	}
	c.Add(attachment()...)
	commit(t, c)
	return measure(t, how)
}

func measure(t *testing.T, how expiry) (out churnTimes) {
	rounds := draw.Number(t, "PATCHBAY_CHURN_ROUNDS", 20, 40)
	if testing.Short() {
		rounds = 10
	}
	out.add, out.remove = addRemove(t, how, 0, rounds)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-stop:
				return
			default:
				addRemove(t, how, 1, 1)
			}
		}
	}()
	for i := range rounds {
		out.others = append(out.others, oneCommit(t, how, func(d *Conn) { d.Add(five(2, i)...) }))
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
	return out
}

// addRemove adds and removes five elements, rounds times.
func addRemove(t *testing.T, how expiry, who, rounds int) (add, remove times) {
	for i := range rounds {
		add = append(add, oneCommit(t, how, func(d *Conn) { d.Add(five(who, i)...) }))
		remove = append(remove, oneCommit(t, how, func(d *Conn) { d.Remove(five(who, i)...) }))
	}
	return add, remove
}

// oneCommit times a process's transaction, from open to close.
func oneCommit(t *testing.T, how expiry, queue func(*Conn)) time.Duration {
	start := time.Now()
	d := Open("")
	d.expiry = how
	queue(d)
	if err := errors.Join(d.Commit(context.Background()), d.Close()); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// five are the elements of one attachment: owner, two ports, two facts.
func five(who, i int) []Element {
	p := churnElement(who, i)
	addr := netip.AddrFrom4([4]byte{10, byte(who), byte(i >> 8), byte(i)})
	return []Element{
		Owner(testOwner[:13]+string(rune('a'+who))+string(rune('a'+i%26)), "x"),
		p, {Set: SetPorts6, Key: p.Key, Data: AddrPort(netip.MustParseAddrPort("[fd00::5]:80"))},
		MasqAll(addr, "x"), SNAT(Published{Protocol: 6, Port: 80, To: netip.AddrPortFrom(addr, 80)}, "x"),
	}
}

// churnElement is the i-th port of one owner.
func churnElement(who, i int) Element {
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(who), byte(i >> 8), byte(i)}), 80)
	return Port(Published{Protocol: uint8(who), Port: uint16(i + 1), To: to}, nil, "x")
}
