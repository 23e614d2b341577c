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

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/store"
)

// The least and the most that a block may hold: bits of the addresses in it.
const (
	minBlock = 2  // an address for the gateway, and one for a container
	maxSpan  = 24 // blocks of a subnet: 1<<maxSpan at most
)

// Check refuses a network that cannot work anywhere. Agents ask too: they trust
// nobody who writes to the store.
func Check(n *store.Network) error {
	errs := []error{spec.ValidateNetworkName(n.Name), checkSubnets(n)}
	switch n.Transport {
	case store.Auto, store.Routes, store.VXLAN:
	default:
		errs = append(errs, fmt.Errorf("transport %q: want auto, routes or vxlan", n.Transport))
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

// leastMTU is the kernel's for a family, in bytes.
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
			return fmt.Errorf("subnet %s: one of each family is enough", s)
		}
		length := bitsOf(n, s)
		if length <= s.Bits() || length > s.Addr().BitLen()-minBlock || length-s.Bits() > maxSpan {
			return fmt.Errorf("a block of /%d does not divide %s: want /%d to /%d", length, s, s.Bits()+1, min(s.Addr().BitLen()-minBlock, s.Bits()+maxSpan))
		}
	}
	return nil
}

// Admin is what people do with the store, from any host.
type Admin struct {
	Store store.Store
}

// Create adds a network. Hosts take it up within moments.
func (a Admin) Create(ctx context.Context, n store.Network) error {
	if err := Check(&n); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	others, _, err := list(ctx, a.Store.Networks(), "")
	if err != nil {
		return err
	}
	if err := apart(&n, sorted(others)); err != nil {
		return fmt.Errorf("create network %s: %w", n.Name, err)
	}
	_, err = a.Store.Networks().Create(ctx, n, nil)
	return err
}

// Remove removes a network with its blocks. Containers that are on it now keep it
// unless forced; those of hosts that are gone do not, since they are not there. One
// that cannot be read is removed by force alone.
func (a Admin) Remove(ctx context.Context, name string, force bool) error {
	at, err := a.Store.Networks().Get(ctx, name)
	if err != nil && !(force && errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	endpoints, _, err := list(ctx, a.Store.Endpoints(), name+"/")
	if err != nil && !(force && errors.Is(err, store.ErrUnreadable)) {
		return err
	}
	if len(endpoints) > 0 && !force {
		return fmt.Errorf("remove network %s: containers are on it: %s", name, a.tell(ctx, sorted(endpoints)))
	}
	if err := a.Store.Networks().Delete(ctx, name, at.Revision); err != nil {
		return err
	}
	_, left, err := a.drop(ctx, name+"/", func(b store.Block) bool { return b.Network == name })
	if !force {
		return errors.Join(left, err)
	}
	errs := []error{err}
	for _, key := range store.UnreadableKeys(left) { // no network is left that it could be of
		errs = append(errs, a.Store.Blocks().Delete(ctx, key, ""))
	}
	return errors.Join(errs...)
}

// tell names some endpoints and their hosts.
func (a Admin) tell(ctx context.Context, endpoints []store.Endpoint) string {
	nodes, _, err := list(ctx, a.Store.Nodes(), "")
	if err != nil {
		nodes = nil // their ids will do
	}
	w := world{Nodes: sorted(nodes)}
	var out []string
	for _, e := range endpoints[:min(len(endpoints), maxTold)] {
		out = append(out, fmt.Sprintf("%s on %s", called(&e), w.nodeName(e.Node)))
	}
	if more := len(endpoints) - maxTold; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// called is what people call an endpoint.
func called(e *store.Endpoint) string {
	if len(e.Names) > 0 {
		return e.Names[0]
	}
	return e.ID[:min(len(e.ID), shortID)]
}

// drop removes blocks whose keys begin with prefix, and says which. Left tells of
// blocks that cannot be read, which stay.
func (a Admin) drop(ctx context.Context, prefix string, which func(store.Block) bool) (gone []store.Block, left, err error) {
	blocks, _, err := list(ctx, a.Store.Blocks(), prefix)
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return nil, nil, err
	}
	left = err
	var errs []error
	for _, b := range sorted(blocks) {
		if !which(b) {
			continue
		}
		went, err := deleteWhile(ctx, a.Store.Blocks(), b.Key(), which)
		if errs = append(errs, err); went {
			gone = append(gone, b)
		}
	}
	return gone, left, errors.Join(errs...)
}

// deleteWhile deletes an object as it is now, if which still wants it: another host
// may have taken it since it was listed.
func deleteWhile[T store.Object](ctx context.Context, t store.Table[T], key string, which func(T) bool) (gone bool, err error) {
	for {
		now, err := t.Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) || err == nil && !which(now.Object) {
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

// deleteAsRead deletes an object that is as it was read, or fails with
// store.ErrConflict. What is not there is not an error.
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

// Forget removes a host that will not come back, and returns its blocks, which
// other hosts may have from now on. One that is present is refused: it would be
// there again at once. Nobody can tell whether containers of one that is not still
// run there. What of other hosts cannot be read is no obstacle; the error tells of
// blocks that may be its and are left, and is store.ErrUnreadable.
func (a Admin) Forget(ctx context.Context, name string) ([]store.Block, error) {
	nodes, _, unread := list(ctx, a.Store.Nodes(), "")
	if unread != nil && !errors.Is(unread, store.ErrUnreadable) {
		return nil, unread
	}
	n, err := find(sorted(nodes), name)
	if err != nil {
		return nil, fmt.Errorf("forget host: %w", errors.Join(err, unread))
	}
	there, _, err := list(ctx, a.Store.Endpoints(), presence+"/"+n.ID+"/")
	if len(there) > 0 || errors.Is(err, store.ErrUnreadable) { // whatever it says, it hangs on a lease
		return nil, fmt.Errorf("forget host %s: it is present: run `patchbayd hosts leave` there, or stop the service and wait for its lease to end", name)
	}
	if err != nil {
		return nil, err
	}
	gone, left, err := a.drop(ctx, "", func(b store.Block) bool { return b.Node == n.ID })
	if err != nil {
		return gone, err
	}
	err = deleteAsRead(ctx, a.Store.Nodes(), n)
	if errors.Is(err, store.ErrConflict) {
		err = fmt.Errorf("forget host %s: it has just written that it is there: it takes other blocks: %w", name, err)
	}
	if left != nil {
		left = fmt.Errorf("left, as nobody can tell whose it is: %w", left)
	}
	return gone, errors.Join(err, left)
}

// find is the node of an id or a name.
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
	return store.Node{}, fmt.Errorf("%d hosts are called %s: say which by its id", len(found), name)
}
