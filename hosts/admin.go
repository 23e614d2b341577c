// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
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
	if err != nil {
		return err
	}
	if len(endpoints) > 0 && !force {
		return fmt.Errorf("remove network %s: containers are on it: %s", name, a.tell(ctx, sorted(endpoints)))
	}
	if err := a.Store.Networks().Delete(ctx, name, at.Revision); err != nil {
		return err
	}
	_, err = a.drop(ctx, func(b store.Block) bool { return b.Network == name })
	return err
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

// drop removes blocks, and says which.
func (a Admin) drop(ctx context.Context, which func(store.Block) bool) (gone []store.Block, err error) {
	blocks, _, err := list(ctx, a.Store.Blocks(), "")
	errs := []error{err}
	for _, b := range sorted(blocks) {
		if !which(b) {
			continue
		}
		if err := a.Store.Blocks().Delete(ctx, b.Key(), ""); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, b)
	}
	return gone, errors.Join(errs...)
}

// Forget removes a host that will not come back, and returns its blocks, which
// other hosts may have from now on. One that is present is refused: it would be
// there again at once. Nobody can tell whether containers of one that is not still
// run there.
func (a Admin) Forget(ctx context.Context, name string) ([]store.Block, error) {
	nodes, _, err := list(ctx, a.Store.Nodes(), "")
	if err != nil {
		return nil, err
	}
	there, _, err := list(ctx, a.Store.Endpoints(), presence+"/")
	if err != nil {
		return nil, err
	}
	n, err := find(sorted(nodes), name)
	if err != nil {
		return nil, fmt.Errorf("forget host: %w", err)
	}
	if (&world{Endpoints: sorted(there)}).present()[n.ID] {
		return nil, fmt.Errorf("forget host %s: it is present: run `patchbayd hosts leave` there, or stop the service and wait for its lease to end", name)
	}
	gone, err := a.drop(ctx, func(b store.Block) bool { return b.Node == n.ID })
	if err != nil {
		return gone, err
	}
	return gone, a.Store.Nodes().Delete(ctx, n.ID, "")
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
