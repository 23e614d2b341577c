// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/packed"
)

// network is a network of the state, with its configuration decoded.
type network struct {
	*state.Network
	options
	list *chain.List
}

// part returns one part of the network's chain.
func (n *network) part(p part) *chain.List { return cut(n.list, p, n.portmap) }

// CreateNetwork implements cnm.NetworkDriver. It checks that the configuration works on this
// host, and stores a copy.
func (d *Driver) CreateNetwork(ctx context.Context, in *cnm.CreateNetworkRequest) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	release, err := d.lockNetwork(ctx, in.NetworkID)
	if err != nil {
		return err
	}
	defer release()
	switch _, err := d.state.Networks.Get(in.NetworkID); {
	case err == nil:
		return fmt.Errorf("network %.12s already exists", in.NetworkID)
	case !errors.Is(err, state.ErrUnknown):
		return err
	}
	n, err := d.newNetwork(ctx, in)
	if err != nil {
		return err
	}
	return d.state.Networks.Save(n)
}

func (d *Driver) lockNetwork(ctx context.Context, id string) (release func(), err error) {
	return d.locks.lock(ctx, "network "+id)
}

func (d *Driver) newNetwork(ctx context.Context, in *cnm.CreateNetworkRequest) (*state.Network, error) {
	o, list, err := d.configured(ctx, in.Options)
	if err != nil {
		return nil, err
	}
	internal, err := in.Options.Flag(cnm.OptionInternal, false)
	v4, errV4 := in.Options.Flag(cnm.OptionEnableIPv4, true)
	if err = errors.Join(err, errV4); err != nil {
		return nil, err
	}
	n := &network{&state.Network{Internal: internal, NoIPv4: !v4}, *o, list}
	if err := errors.Join(n.everywhere(list), n.withoutIPv4(list)); err != nil {
		return nil, err
	}
	if list, err = n.adapt(list); err != nil {
		return nil, err
	}
	if err := d.usable(ctx, list, o); err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	return &state.Network{
		ID: in.NetworkID, Options: maps.Clone(o.user), Internal: internal, NoIPv4: !v4,
		Config: encodeList(list), Since: time.Now(),
	}, nil
}

// configured parses the options of a network, and loads the configuration that they name.
func (d *Driver) configured(ctx context.Context, in cnm.Options) (*options, *chain.List, error) {
	user, err := in.Strings()
	if err != nil {
		return nil, nil, err
	}
	o, err := parseOptions(user)
	if err != nil {
		return nil, nil, err
	}
	list, err := d.resolve(ctx, o)
	return o, list, err
}

// usable asks the plugins whether they can work, before Docker relies on them.
func (d *Driver) usable(ctx context.Context, list *chain.List, o *options) error {
	for p := range parts {
		l := cut(list, p, o.portmap)
		if len(l.Plugins) == 0 {
			continue
		}
		if _, err := d.run[p].Validate(ctx, l); err != nil {
			return err
		}
		if err := d.run[p].Status(ctx, l); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
	}
	return nil
}

// DeleteNetwork implements cnm.NetworkDriver. Even if this call fails, Docker forgets the
// network. So DeleteNetwork also removes the endpoints that are left.
func (d *Driver) DeleteNetwork(ctx context.Context, in *cnm.NetworkRequest) error {
	return d.deleteNetwork(ctx, in.NetworkID)
}

// deleteNetwork holds the network's lock, because Docker, Keep and Collect may all delete the same
// network at once.
func (d *Driver) deleteNetwork(ctx context.Context, id string) error {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	release, err := d.lockNetwork(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	n, err := d.state.Networks.Get(id)
	switch {
	case errors.Is(err, state.ErrUnknown):
		return nil
	case err == nil && !n.Deleted: // if the removal of an endpoint fails, the collector tries again
		n.Deleted = true
		err = d.state.Networks.Save(n)
	}
	if err != nil {
		return err
	}
	all, unread := d.state.Endpoints.List()
	if state.OnlyDamaged(unread) { // a damaged file does not keep any network
		d.opts.Log("network %.12s is removed beside an endpoint that cannot be read: %v", id, unread)
		unread = nil
	}
	errs := []error{unread}
	for _, e := range all {
		if e.Network == id {
			d.opts.Log("endpoint %.12s: its network is deleted", e.ID)
			errs = append(errs, d.DeleteEndpoint(ctx, &cnm.EndpointRequest{NetworkID: e.Network, EndpointID: e.ID}))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("network %.12s is kept until it can be removed: %w", id, err)
	}
	return d.state.Networks.Drop(id)
}

// network reads and decodes a network.
func (d *Driver) network(id string) (*network, error) {
	n, err := d.state.Networks.Get(id)
	if err != nil {
		return nil, err
	}
	o, err := parseOptions(n.Options)
	if err != nil {
		return nil, fmt.Errorf("network %.12s: %w", id, err)
	}
	list, err := chain.ParseList(n.Config)
	if err != nil {
		return nil, fmt.Errorf("network %.12s: %w", id, err)
	}
	return &network{n, *o, list}, nil
}

// networkOf returns the network of an endpoint, with the configuration that the endpoint was
// created with.
func (d *Driver) networkOf(e *state.Endpoint) (*network, error) {
	n, err := d.network(e.Network)
	if err != nil || len(e.Config) == 0 {
		return n, err
	}
	if n.list, err = chain.ParseList(e.Config); err != nil {
		return nil, fmt.Errorf("endpoint %.12s: %w", e.ID, err)
	}
	return n, nil
}

// refresh reads the network's file again for a new endpoint, so that containers of all runtimes use
// the same configuration. It returns nil if the driver must use the copy from the network's
// creation: the configuration has not changed, the file is gone or cannot be read, or Docker has
// chosen an address from the copy's subnet.
func (d *Driver) refresh(ctx context.Context, n *network, given *cnm.Interface) (json.RawMessage, error) {
	if n.network == "" || given != nil && (given.Address.IsValid() || given.AddressIPv6.IsValid()) {
		return nil, nil
	}
	list, err := d.resolve(ctx, &n.options)
	if err != nil {
		d.opts.Log("network %.12s: using its copy of %s: %v", n.ID, n.list.Name, err)
		return nil, nil //nolint:nilerr // the copy works as it did
	}
	if list, err = n.adapt(list); err != nil {
		return nil, err
	}
	config := encodeList(list)
	if bytes.Equal(config, n.Config) {
		return nil, nil
	}
	if err := d.usable(ctx, list, &n.options); err != nil {
		return nil, fmt.Errorf("network %s, whose file has changed: %w", list.Name, err)
	}
	n.list = list
	return config, nil
}

// adapt changes a configuration as the network's options ask.
func (n *network) adapt(list *chain.List) (_ *chain.List, err error) {
	if n.Internal {
		if list, err = closed(list); err != nil {
			return nil, err
		}
	}
	if n.isolate != "" {
		return isolated(list, n.isolate)
	}
	return list, nil
}

// everywhere refuses an option that would have effect only on this host, if the network spans
// hosts. A network that a former release created with the option keeps it.
func (n *network) everywhere(list *chain.List) error {
	if n.isolate == "" || !spansHosts(list) || n.isolate == policyOf(list) {
		return nil
	}
	return fmt.Errorf("option %s: network %s spans hosts, and the option would have effect only on this host: create the network with `patchbayd hosts create --isolate`, and leave the option out", optIsolate, list.Name)
}

// withoutIPv4 refuses --ipv4=false if the configuration has an IPv4 range. For an IPAM plugin whose
// ranges the driver cannot read, only an interface shows what it gives (checkFamily).
func (n *network) withoutIPv4(list *chain.List) error {
	pool := new(state.Pool)
	if !n.NoIPv4 || poolOf(pool, list, "") != nil || pool.Prefix.Bits() == 0 {
		return nil
	}
	return fmt.Errorf("--ipv4=false: the configuration decides about addresses, and that of network %s has the IPv4 range %s: use a configuration without it", list.Name, pool.Prefix)
}

// checkFamily returns an error if the interface of a network without IPv4 has an IPv4 address.
func (n *network) checkFamily(e *state.Endpoint) error {
	if v4, _ := addresses(e.Kernel); n.NoIPv4 && v4.IsValid() {
		return fmt.Errorf("--ipv4=false: the configuration decides about addresses, and the IPAM plugin of network %s gave %s", n.list.Name, v4.Addr())
	}
	return nil
}

// resolve reads the configuration that the options name. When the time of the call is over,
// resolve gives up. So a file system that hangs does not block Docker's other calls.
func (d *Driver) resolve(ctx context.Context, o *options) (list *chain.List, err error) {
	ctx, cancel := d.limit(ctx)
	defer cancel()
	list, err = orEnd(ctx, func() (*chain.List, error) { return d.load(o) })
	if err != nil {
		return nil, err
	}
	return list, runnable(list)
}

// orEnd returns the result of read. If ctx ends first, orEnd returns an error.
func orEnd[T any](ctx context.Context, read func() (T, error)) (out T, err error) {
	done := make(chan struct{})
	var got T
	var failed error
	go func() {
		defer close(done)
		got, failed = read()
	}()
	select {
	case <-done:
		return got, failed
	case <-ctx.Done():
		return out, fmt.Errorf("read the configuration: %w", ctx.Err())
	}
}

func (d *Driver) load(o *options) (*chain.List, error) {
	switch {
	case o.network != "":
		return d.run[hold].Load(o.network)
	case strings.HasPrefix(strings.TrimSpace(o.conf), "{"):
		return chain.ParseList([]byte(o.conf))
	case filepath.IsAbs(o.conf):
		return chain.LoadFile(o.conf)
	}
	return nil, fmt.Errorf("option %s=%q: want JSON or an absolute path", optConf, o.conf)
}

// runnable returns an error for a configuration that cannot be used in any call.
func runnable(list *chain.List) error {
	if len(list.Plugins) == 0 {
		return errors.New("the configuration has no plugins")
	}
	for i := range list.Plugins {
		if p := &list.Plugins[i]; p.Type == packed.Type {
			if _, err := unpack(p); err != nil {
				return err
			}
		}
	}
	return nil
}
