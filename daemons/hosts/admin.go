// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/spec"
)

// These numbers limit the size of a block.
const (
	minBlock = 2  // bits of the smallest block, which has a gateway and one container
	maxSpan  = 24 // bits for the number of a block in its subnet, so 1<<maxSpan blocks at most
)

// Check returns an error for a network that cannot work on any host. Agents call it too,
// because another program may have written to the store.
func Check(n *store.Network) error {
	errs := []error{spec.ValidateNetworkName(n.Name), checkSubnets(n)}
	switch n.Transport {
	case store.Auto, store.Routes, store.VXLAN, store.WireGuard:
	default:
		errs = append(errs, fmt.Errorf("transport %q: want auto, routes, vxlan or wireguard", n.Transport))
	}
	if least := leastMTU(n); n.MTU != 0 && (n.MTU < least || n.MTU > 65535) {
		errs = append(errs, fmt.Errorf("mtu %d: want %d to 65535", n.MTU, least))
	}
	for i, p := range n.Plugins {
		var head struct{ Type string }
		if err := json.Unmarshal(p, &head); err != nil {
			errs = append(errs, fmt.Errorf("plugin %d: %w", i, err))
			continue
		}
		errs = append(errs, spec.ValidatePluginType(head.Type))
	}
	return errors.Join(errs...)
}

// leastMTU returns the smallest MTU that the kernel accepts for the network's families, in
// bytes.
func leastMTU(n *store.Network) int {
	if slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return s.Addr().Is6() }) {
		return 1280
	}
	return 576
}

func checkSubnets(n *store.Network) error {
	if len(n.Subnets) == 0 {
		return errors.New("a network needs a subnet")
	}
	for i, s := range n.Subnets {
		if err := mesh.CheckSubnet(s); err != nil {
			return err
		}
		if !s.IsValid() || s != s.Masked() || s.Addr().Is4In6() || s.Addr().IsMulticast() {
			return fmt.Errorf("subnet %s: want a network address and its length", s)
		}
		if slices.ContainsFunc(n.Subnets[:i], func(o netip.Prefix) bool { return o.Addr().Is4() == s.Addr().Is4() }) {
			return fmt.Errorf("subnet %s: at most one of each family is possible", s)
		}
		length := bitsOf(n, s)
		if length <= s.Bits() || length > s.Addr().BitLen()-minBlock || length-s.Bits() > maxSpan {
			return fmt.Errorf("a block of /%d does not divide %s: want /%d to /%d", length, s, s.Bits()+1, min(s.Addr().BitLen()-minBlock, s.Bits()+maxSpan))
		}
	}
	return nil
}

// Admin implements the commands that a user runs on any host to change the store.
type Admin struct {
	Store store.Store
}

// Create adds a network. The agents configure it on all hosts within moments.
func (a Admin) Create(ctx context.Context, n store.Network) error {
	if err := Check(&n); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	others, _, err := list(ctx, a.Store.Networks(), "")
	if err != nil {
		return err
	}
	if err := apart(&n, order.Values(others)); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	at, err := a.Store.Networks().Create(ctx, n, nil)
	if err != nil {
		return err
	}
	return a.yield(ctx, &n, at)
}

// yield removes a new network if it overlaps one that another Create made before it, but after this
// Create looked. So of two such networks the first stays.
func (a Admin) yield(ctx context.Context, n *store.Network, at store.Revision) error {
	items, _, err := a.Store.Networks().List(ctx, "")
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return fmt.Errorf("create network %s: it is created, but may overlap one that was created meanwhile: %w", n.Name, err)
	}
	var earlier []store.Network
	for _, i := range items {
		if i.Revision.Before(at) {
			earlier = append(earlier, i.Object)
		}
	}
	if err := apart(n, earlier); err != nil {
		return errors.Join(fmt.Errorf("create network %s: %w", n.Name, err), a.Store.Networks().Delete(ctx, n.Name, at))
	}
	return nil
}

// Remove removes a network with its blocks. It refuses while containers are on the network,
// unless force is set. Remove does not see containers of a host without a session, because the
// store has no endpoints of that host. It removes a network that cannot be read only with force.
func (a Admin) Remove(ctx context.Context, name string, force bool) error {
	at, err := a.Store.Networks().Get(ctx, name)
	if err != nil && !(force && errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	endpoints, _, err := list(ctx, a.Store.Entries(), name+"/")
	if err != nil && !(force && errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	if len(endpoints) > 0 && !force {
		return fmt.Errorf("remove network %s: containers are on it: %s", name, a.describe(ctx, order.Values(endpoints)))
	}
	if err := a.Store.Networks().Delete(ctx, name, at.Revision); err != nil {
		return err
	}
	_, kept, err := a.drop(ctx, name+"/", func(b store.Block) bool { return b.Network == name })
	if !force {
		return errors.Join(kept, err)
	}
	errs := []error{err}
	for _, key := range store.UnreadableKeys(kept) { // the network is gone, so nothing but its own block can have this prefix
		errs = append(errs, a.Store.Blocks().Delete(ctx, key, ""))
	}
	return errors.Join(errs...)
}

// describe names some endpoints and their hosts.
func (a Admin) describe(ctx context.Context, endpoints []store.Entry) string {
	nodes, _, err := list(ctx, a.Store.Nodes(), "")
	if err != nil {
		nodes = nil // describe then prints the hosts' ids
	}
	w := world{Nodes: order.Values(nodes)}
	var out []string
	for _, e := range endpoints[:min(len(endpoints), maxNamed)] {
		out = append(out, fmt.Sprintf("%s on %s", called(&e), w.nodeName(e.Node)))
	}
	if more := len(endpoints) - maxNamed; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// called returns the name by which a user knows an endpoint.
func called(e *store.Entry) string {
	if len(e.Names) > 0 {
		return e.Names[0]
	}
	return e.ID[:min(len(e.ID), shortID)]
}

// drop removes those blocks whose keys begin with prefix and for which match returns true, and
// returns them. It keeps blocks that cannot be read; left names them.
func (a Admin) drop(ctx context.Context, prefix string, match func(store.Block) bool) (dropped []store.Block, kept, err error) {
	blocks, _, err := list(ctx, a.Store.Blocks(), prefix)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return nil, nil, err
	}
	kept = err
	var errs []error
	for _, b := range order.Values(blocks) {
		if !match(b) {
			continue
		}
		went, err := deleteWhile(ctx, a.Store.Blocks(), b.Key(), match)
		if errs = append(errs, err); went {
			dropped = append(dropped, b)
		}
	}
	return dropped, kept, errors.Join(errs...)
}

// deleteWhile reads an object, and deletes it if match returns true for what it read. Another
// host may have taken the object since it was listed, so deleteWhile reads it again.
func deleteWhile[T store.Object](ctx context.Context, t store.Table[T], key string, match func(T) bool) (deleted bool, err error) {
	for {
		now, err := t.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) || err == nil && !match(now.Object) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err = t.Delete(ctx, key, now.Revision); !errors.Is(err, store.ErrConflict) {
			return err == nil, err
		}
	}
}

// deleteAsRead deletes an object if it has not changed since it was read. If it has changed, the
// error is store.ErrConflict. deleteAsRead accepts that the object does not exist.
func deleteAsRead[T store.Object](ctx context.Context, t store.Table[T], was T) error {
	changed := false
	_, err := deleteWhile(ctx, t, was.Key(), func(now T) bool {
		changed = !reflect.DeepEqual(now, was)
		return !changed
	})
	if err == nil && changed {
		err = fmt.Errorf("delete %s: %w", was.Key(), store.ErrConflict)
	}
	return err
}

// Forget removes a host that will not come back. It returns the host's blocks, which other hosts
// may take from now on. It refuses a host that is present, because that host's agent would
// register again at once. The store cannot tell whether containers still run on a host that is
// not present. Unreadable objects of other hosts do not stop Forget. If a block cannot be read, the
// host is forgotten, and the error is errKeptBlocks.
func (a Admin) Forget(ctx context.Context, name string) ([]store.Block, error) {
	nodes, _, unread := list(ctx, a.Store.Nodes(), "")
	if unread != nil && !errors.Is(unread, store.ErrUnreadable) {
		return nil, unread
	}
	n, err := find(order.Values(nodes), name)
	if err != nil {
		return nil, fmt.Errorf("forget host: %w", errors.Join(err, unread))
	}
	there, _, err := list(ctx, a.Store.Entries(), presence+"/"+n.ID+"/")
	if len(there) > 0 || errors.Is(err, store.ErrUnreadable) { // an unreadable object shows presence too, because it is on a session
		return nil, fmt.Errorf("forget host %s: it is present: run `patchbayd hosts leave` there, or stop the service and wait for its session to end", name)
	}
	if err != nil {
		return nil, err
	}
	dropped, kept, err := a.drop(ctx, "", func(b store.Block) bool { return b.Node == n.ID })
	if err != nil {
		return dropped, err
	}
	err = deleteAsRead(ctx, a.Store.Nodes(), n)
	switch {
	case errors.Is(err, store.ErrConflict):
		err = fmt.Errorf("forget host %s: its agent has just updated its record, so it runs and claims other blocks: %w", name, err)
	case err == nil && kept != nil:
		err = fmt.Errorf("forget host %s: %w: %w", name, errKeptBlocks, kept)
	}
	return dropped, err
}

// errKeptBlocks means that Forget forgot the host, so routes to it may go, but kept blocks that may be the host's. The
// error lists them.
var errKeptBlocks = errors.New("the host is forgotten, but blocks that cannot be read stay, because they may be another host's")

// find returns the node with this id or name.
func find(nodes []store.Node, name string) (store.Node, error) {
	var found []store.Node
	for _, n := range nodes {
		if n.ID == name {
			return n, nil
		}
		if n.Name == name {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return store.Node{}, fmt.Errorf("%s: %w", name, store.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return store.Node{}, fmt.Errorf("%d hosts have the name %s: give an id instead", len(found), name)
}
