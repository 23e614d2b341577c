// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
)

// View is the table of Services for those who only look at it.
type View struct {
	fw    *nft.Conn
	state nft.ServicesState
	fault string
	sets  []string // those that a layout knows
}

// mostViews is how often WithView reads a table that changes all the time.
const mostViews = 5

// WithView calls the function do with what the kernel has. If the Services change during the call, WithView calls do again. So do must
// change nothing.
func WithView(fw *nft.Conn, do func(*View) error) error {
	for range mostViews {
		v, err := view(fw)
		if err == nil {
			err = do(v)
		}
		now, rerr := fw.ReadServicesRevision()
		if v.state.Revision == now || rerr != nil {
			return errors.Join(err, rerr)
		}
	}
	return fmt.Errorf("read Services of the kernel: they changed during each of %d attempts: try again", mostViews)
}

func view(fw *nft.Conn) (v *View, err error) {
	v = &View{fw: fw}
	if v.state, err = fw.ReadServices(); err != nil {
		return v, fmt.Errorf("read Services of the kernel: %w", err)
	}
	if v.fault = v.state.Fault(); v.fault != "" || !v.state.Exists {
		return v, nil
	}
	for _, name := range v.state.Sets {
		if _, err := nft.LayoutOfServices(name); err == nil {
			v.sets = append(v.sets, name)
		}
	}
	layout, err := nft.LayoutOfServices(v.sets...)
	if err != nil {
		return v, err
	}
	mend, err := fw.MendServices(v.state, layout)
	if mend != nil {
		v.fault = mend.String()
	}
	return v, err
}

// Exists reports whether the kernel has the table.
func (v *View) Exists() bool { return v.state.Exists }

// Fault says why the elements do not say what happens to packets: the table is of another layout, or its sets or rules were changed. It
// is "" if they do.
func (v *View) Fault() string { return v.fault }

// Readable returns an error if there is no table, or if its elements do not say what happens to packets.
func (v *View) Readable() error {
	switch {
	case !v.state.Exists:
		return fmt.Errorf("this node has no table inet %s: patchbay does not do Services here", nft.ServicesTable)
	case v.fault != "":
		return fmt.Errorf("what the table inet %s does is not known, because %s", nft.ServicesTable, v.fault)
	}
	return nil
}

// All returns all elements, except what clients remember. The kernel lists a large map in quadratic time: 144,000 endpoints take seconds.
func (v *View) All() (services.Table, error) {
	return v.listed(func(services.Element) bool { return true })
}

// listed returns the elements of some sets.
func (v *View) listed(want func(like services.Element) bool) (services.Table, error) {
	f := &found{table: make(services.Table)}
	for _, name := range v.sets {
		like, ok := services.SetNamed(name)
		if !ok || !want(like) {
			continue
		}
		switch ok, err := f.readSet(v.fw, name, like); {
		case err != nil:
			return nil, err
		case !ok:
			return nil, fmt.Errorf("set %s of table inet %s has elements that no Service makes", name, nft.ServicesTable)
		}
	}
	return f.table, nil
}

// Frontends returns the frontends at an address, sorted. Those of node ports have the unspecified address of their family.
func (v *View) Frontends(at netip.Addr) ([]services.Frontend, error) {
	list, err := v.listed(func(like services.Element) bool {
		return like.IPv6 == at.Is6() && like.NodePort == at.IsUnspecified() && like.Set.OfFrontends()
	})
	seen := make(map[services.Frontend]bool)
	for e := range list {
		if e.Frontend.Addr == at {
			seen[e.Frontend] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), services.Frontend.Compare), err
}

// Addresses returns the addresses of a set of addresses, sorted.
func (v *View) Addresses(set services.Set) ([]netip.Addr, error) {
	t, err := v.listed(func(like services.Element) bool { return like.Set == set })
	return t.Addresses(set), err
}

// Around returns the elements that decide about packets to some frontends, and to other ports of their addresses. It asks for single elements.
func (v *View) Around(frontends ...services.Frontend) (services.Table, error) {
	var keys []services.Element
	ranged := false
	for _, name := range v.sets {
		like, ok := services.SetNamed(name)
		for _, f := range frontends {
			if ok && like.IPv6 == f.Addr.Is6() {
				keys = append(keys, f.Keys(like)...)
			}
		}
	}
	t, err := v.find(keys)
	if err != nil {
		return nil, err
	}
	var more []services.Element
	for e, to := range t {
		ranged = ranged || e.Set == services.Ranged
		more = append(more, e.Slots()...)
		more = append(more, services.HairpinOf(to)...)
	}
	slots, err := v.find(more)
	if err != nil {
		return nil, err
	}
	maps.Copy(t, slots)
	more = nil
	for _, to := range slots {
		more = append(more, services.HairpinOf(to)...)
	}
	hairpins, err := v.find(more)
	if err != nil {
		return nil, err
	}
	maps.Copy(t, hairpins)
	few, err := v.listed(func(like services.Element) bool { return ofRanges(like.Set) || ranged && like.Set == services.Allowed })
	maps.Copy(t, few)
	return t, err
}

// find asks for elements, each with its key.
func (v *View) find(list []services.Element) (services.Table, error) {
	keys := make([]nft.ServiceKey, len(list))
	for i := range list {
		keys[i] = nft.ServiceKey{Set: list[i].Name(), Key: appendKey(nil, &list[i])}
	}
	t, valid := make(services.Table), true
	err := v.fw.FindServiceElements(keys, func(i int, data []byte) {
		to, ok := endpointOf(data, list[i].IPv6)
		valid = valid && ok
		t[list[i]] = to
	})
	if err == nil && !valid {
		err = fmt.Errorf("table inet %s has endpoints that no Service makes", nft.ServicesTable)
	}
	return t, err
}

// endpointOf reads the data of an element. That of a set has none.
func endpointOf(data []byte, ipv6 bool) (netip.AddrPort, bool) {
	if len(data) == 0 {
		return netip.AddrPort{}, true
	}
	r := reader{data, true}
	to := netip.AddrPortFrom(r.addr(ipv6), r.port())
	return to, r.whole()
}

// Remembered returns where affinity sent the client of a packet before. The address is not valid if it did not.
func (v *View) Remembered(k services.Packet) (to netip.AddrPort, err error) {
	if !k.From.IsValid() || !v.state.Exists || v.fault != "" {
		return to, nil
	}
	ipv6 := k.To.Addr().Is6()
	key := appendAddr(appendAddr(nil, k.From), k.To.Addr())
	key = appendPort(append(key, byte(k.Protocol), 0, 0, 0), k.To.Port())
	err = v.fw.FindServiceElements([]nft.ServiceKey{{Set: nft.AffinityMap(ipv6), Key: key}}, func(_ int, data []byte) { to, _ = endpointOf(data, ipv6) })
	return to, err
}
