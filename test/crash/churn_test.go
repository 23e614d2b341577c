// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	churnCallers = 16
	killOdds     = 12              // of a hundred calls of a plugin
	slow         = 5 * time.Minute // is added to the time if a busy machine does too little in it
)

// churnTime is how long TestChurn runs at least. PATCHBAY_CHURN sets another time, as `make nightly`
// does.
func churnTime(t *testing.T) time.Duration {
	t.Helper()
	return draw.Time(t, "PATCHBAY_CHURN", 4*time.Second, time.Minute)
}

// churnPods returns the number of pods, which is small if TestChurn is short: at its end, all are
// detached one by one.
func churnPods(t *testing.T) int {
	t.Helper()
	if churnTime(t) < time.Minute {
		return 48
	}
	return 1000
}

// churnLists returns four networks, as lists of plugins and as one plugin. Their pools are so
// small that addresses are used several times.
func churnLists(t *testing.T) []*chain.List {
	t.Helper()
	const (
		portmap   = `{"type":"portmap","capabilities":{"portMappings":true}}`
		firewall  = `{"type":"firewall","ingressPolicy":"same-bridge"}`
		bandwidth = `{"type":"bandwidth","ingressRate":80000000,"ingressBurst":8000000,"egressRate":80000000,"egressBurst":8000000}`
	)
	size := bits.Len(uint(churnPods(t)/4)) + 1 // of an address within its pool
	ipam := func(n int) string {
		return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.9%d.0.0/%d"}],[{"subnet":"fd9%d::/%d"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`,
			n, 32-size, n, 128-size)
	}
	bridge := func(n int) string {
		return fmt.Sprintf(`{"type":"bridge","bridge":"churn%d","isGateway":true,"ipMasq":true,%s}`, n, ipam(n))
	}
	ptp := fmt.Sprintf(`{"type":"ptp","ipMasq":true,%s}`, ipam(2))
	macvlan := fmt.Sprintf(`{"type":"macvlan","master":"churn-uplink",%s}`, ipam(3))
	var lists []*chain.List
	for name, plugins := range map[string]string{
		"churn-bridge": bridge(0) + "," + portmap + "," + firewall + "," + bandwidth,
		"churn-whole":  `{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[` + bridge(1) + "," + portmap + "," + firewall + "," + bandwidth + `]}`,
		"churn-ptp":    ptp + "," + portmap + `,{"type":"firewall"}`,
		"churn-mac":    macvlan + `,{"type":"tuning","sysctl":{"net.core.somaxconn":"512"}}`,
	} {
		l, err := chain.ParseList([]byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[%s]}`, name, plugins)))
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, l)
	}
	return lists
}

// churning is a node on which pods come and go.
type churning struct {
	*testing.T
	rt   *chain.Runtime
	kill *killer
	// exclusive is held shared by an ADD or DEL. A GC holds it exclusively, because its list of
	// living attachments must be complete (SPEC.md, "Garbage collection").
	exclusive sync.RWMutex

	mu    sync.Mutex
	lives map[netip.Addr]string // address to the pod whose ADD returned it

	adds, dels, lost, collections atomic.Int64
}

// TestChurn lets sixteen callers attach and detach many pods. Meanwhile plugins are killed
// at random, callers forget what they did, namespaces end first, and GCs run. While a pod lives,
// no other pod gets its address. After a last GC nothing is left.
func TestChurn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	uplink(t)
	lists := churnLists(t)
	c := &churning{T: t, kill: &killer{seed: seed}, lives: map[netip.Addr]string{}}
	c.rt = chain.New(chain.WithPath(reftest.Ours(t)), chain.WithInvoker(c.kill))
	before := c.standing(lists)

	pods := c.churn(lists, seed)
	c.end(lists, pods)
	t.Logf("%d ADDs and %d DELs, %d plugins killed, %d pods forgotten, %d collections", c.adds.Load(), c.dels.Load(), c.kill.killed.Load(), c.lost.Load(), c.collections.Load())
	if !c.enough() {
		t.Error("too little happened to prove anything")
	}
	leak.NoLeaks(t, before, append(stateDirs(), paths.Default().State)...)
}

// enough reports whether so much happened that it proves something.
func (c *churning) enough() bool {
	adds := min(100, churnPods(c.T))
	return c.kill.killed.Load() >= 10 && int(c.adds.Load()) >= adds && c.collections.Load() >= 1
}

// uplink creates the master of the macvlan network, with a carrier.
func uplink(t *testing.T) {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "churn-uplink", TxQLen: -1}, PeerName: "churn-far"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(veth) }) // the namespace ends with the process
	for _, name := range []string{veth.Name, veth.PeerName} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// standing attaches and detaches one pod on each network. So the objects that a network keeps by
// design exist and are counted.
func (c *churning) standing(lists []*chain.List) leak.State {
	for i, l := range lists {
		p := &churned{c: c, list: l, number: churnPods(c.T) + i, rnd: rand.New(rand.NewPCG(1, 1))}
		p.add()
		p.del(false)
		p.endNamespace()
	}
	return leak.Must(c, append(stateDirs(), paths.Default().State)...)
}

// churn runs the callers until the time is up and enough happened. It returns the pods in their last
// state.
func (c *churning) churn(lists []*chain.List, seed uint64) (pods []*churned) {
	for i := range churnPods(c.T) {
		pods = append(pods, &churned{c: c, list: lists[i%len(lists)], number: i, rnd: rand.New(rand.NewPCG(seed, uint64(i)))})
	}
	c.kill.odds.Store(killOdds)
	most := churnTime(c.T)
	stop := time.Now().Add(most)
	goesOn := func() bool {
		left := time.Until(stop)
		return (left > 0 || !c.enough() && left > -slow) && !c.Failed()
	}
	var callers sync.WaitGroup
	for n := range churnCallers {
		callers.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(n)<<32))
			for goesOn() {
				p := pods[rnd.IntN(len(pods)/churnCallers)*churnCallers+n] // a pod of this caller only
				c.exclusive.RLock()
				p.step()
				c.exclusive.RUnlock()
			}
		})
	}
	for goesOn() {
		time.Sleep(min(7*time.Second, most))
		c.collect(lists, pods)
	}
	callers.Wait()
	c.kill.odds.Store(0)
	return pods
}

// collect runs a GC of all networks and then checks the living pods.
func (c *churning) collect(lists []*chain.List, pods []*churned) {
	c.exclusive.Lock()
	defer c.exclusive.Unlock()
	odds := c.kill.odds.Swap(0)
	defer c.kill.odds.Store(odds)
	var keep []chain.Keep
	for _, l := range lists {
		k := chain.Keep{List: l}
		for _, p := range pods {
			if p.list == l && p.state == attached {
				k.Valid = append(k.Valid, spec.AttachmentKey{ContainerID: p.id(), IfName: "eth0"})
			}
		}
		keep = append(keep, k)
	}
	start := time.Now()
	if err := c.rt.GC(context.Background(), keep...); err != nil {
		c.Errorf("GC: %v", err)
	}
	c.Logf("after %d ADDs: GC took %v", c.adds.Load(), time.Since(start).Round(time.Millisecond))
	c.collections.Add(1)
	for i, p := range pods {
		if p.state == forgotten {
			p.state = absent
		}
		if p.state == attached {
			p.holds()
			if (i+int(c.collections.Load()))%50 == 0 {
				p.check()
			}
		}
	}
}

// end detaches half of the living pods; the others lose their namespace and are left to
// GC.
func (c *churning) end(lists []*chain.List, pods []*churned) {
	for _, p := range pods {
		switch {
		case p.state == attached && p.number%2 == 0:
			p.del(false)
		case p.state == attached:
			p.forget()
		}
		p.endNamespace()
	}
	c.collect(lists, pods)
}

// claim notes the addresses of a pod's result. If another living pod has one of them, claim fails.
func (c *churning) claim(p *churned, ips []spec.IPConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ip := range ips {
		a := ip.Address.Addr()
		if other, taken := c.lives[a]; taken {
			c.Errorf("%s is given to %s while %s has it", a, p.id(), other)
		}
		c.lives[a] = p.id()
		p.addrs = append(p.addrs, a)
	}
}

// release ends a pod's claims. It comes before the DEL, which may free the addresses at
// any moment.
func (c *churning) release(p *churned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range p.addrs {
		delete(c.lives, a)
	}
	p.addrs = nil
}

// holds checks that host-local's files still assign the pod its addresses.
func (p *churned) holds() {
	for _, a := range p.addrs {
		raw, err := os.ReadFile(filepath.Join(paths.Default().CNI, "networks", p.list.Name, a.String()))
		if err != nil || !strings.HasPrefix(string(raw), p.id()+"\r\n") {
			p.c.Errorf("%s lives with %s, whose reservation is %q (%v)", p.id(), a, raw, err)
		}
	}
}

// namespace returns the path of the pod's network namespace.
func (p *churned) namespace() string {
	return filepath.Join("/run/netns", fmt.Sprintf("churn-%d", p.number))
}

// endNamespace removes the namespace, if the pod has one.
func (p *churned) endNamespace() {
	if !p.hasNS {
		return
	}
	p.hasNS = false
	if err := netns.Delete(p.namespace()); err != nil {
		p.c.Error(err)
	}
}
