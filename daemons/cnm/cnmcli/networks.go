// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmplugin"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// requested holds what the plugins have asked of drivers for the network of one name.
type requested struct {
	network *cnmplugin.Network // nil if only addresses were requested
	pools   *cnmipam.State     // nil if no pools were requested
	living  []spec.AttachmentKey
	broken  error // names the files that could not be used; their parts are missing
}

func (a *app) requested(name string) (k *requested, err error) {
	s := remote.Open(a.paths.State)
	k = new(requested)
	if k.network, err = load[cnmplugin.Network](k, s, remote.Networks, name); err != nil {
		return nil, err
	}
	if k.pools, err = load[cnmipam.State](k, s, remote.Pools, name); err != nil {
		return nil, err
	}
	k.living, err = living(s, name)
	return k, err
}

// load reads a file. If there is no file, load returns nil. If the file cannot be used, load
// stores the error in broken.
func load[T any](k *requested, s *remote.Dir, kind, name string) (*T, error) {
	v, err := remote.Load[T](s, kind, name)
	if errors.Is(err, remote.ErrBroken) {
		k.broken = errors.Join(k.broken, err)
		return nil, nil
	}
	return v, err
}

// living returns the attachments of a network that have not ended. An ended attachment may still
// have a record and an address, if its driver could not be reached. living leaves such an attachment
// out.
func living(s *remote.Dir, network string) ([]spec.AttachmentKey, error) {
	set, ended := map[spec.AttachmentKey]bool{}, map[spec.AttachmentKey]bool{}
	for _, p := range Plugins() { // cnm comes first
		list, _, err := s.List(network, p.Name)
		if err != nil {
			return nil, err
		}
		for _, at := range list {
			key := spec.AttachmentKey{ContainerID: at.ContainerID, IfName: at.IfName}
			ended[key] = ended[key] || at.Ended
			set[key] = true
		}
	}
	maps.DeleteFunc(set, func(key spec.AttachmentKey, _ bool) bool { return ended[key] })
	return slices.Collect(maps.Keys(set)), nil
}

func (a *app) networks() error {
	s := remote.Open(a.paths.State)
	names := map[string]bool{}
	for _, kind := range []string{remote.Networks, remote.Pools} {
		list, err := s.Names(kind)
		if err != nil {
			return err
		}
		for _, n := range list {
			names[n] = true
		}
	}
	var broken error
	for _, name := range slices.Sorted(maps.Keys(names)) {
		k, err := a.requested(name)
		if err != nil {
			return err
		}
		broken = errors.Join(broken, k.broken)
		if err := a.say("%s", k.line(name)); err != nil {
			return err
		}
	}
	return broken
}

// line describes a network in one line: name, driver, id, IPAM driver, pools, attachments and errors.
func (k *requested) line(name string) string {
	line := name
	if k.network != nil {
		line += fmt.Sprintf(" driver=%s id=%s", k.network.Driver, k.network.Request.NetworkID)
	}
	if k.pools != nil {
		line += fmt.Sprintf(" ipam=%s", k.pools.Driver)
		for _, p := range k.pools.Pools {
			line += fmt.Sprintf(" pool=%s", p.Prefix)
		}
	}
	line += fmt.Sprintf(" attachments=%d", len(k.living))
	if k.broken != nil {
		line += fmt.Sprintf(" error=%q", k.broken)
	}
	return line
}

// rm deletes a network. It calls the GC of the plugins, which changes nothing that is in use. If
// force is set, rm then also removes two kinds of files. One kind is the records of attachments that
// the driver has not ended because it could not be reached. The other kind is unreadable files, whose
// driver is not known.
func (a *app) rm(ctx context.Context, name string, force bool) error {
	if err := spec.ValidateNetworkName(name); err != nil {
		return err
	}
	listed := clock.Listing(ctx) // GC keeps what an ADD makes after this
	k, err := a.requested(name)
	switch {
	case err != nil:
		return err
	case k.network == nil && k.pools == nil && k.broken == nil:
		return fmt.Errorf("no driver was asked for a network %s", name)
	case len(k.living) > 0:
		return fmt.Errorf("network %s is not deleted: it has %d attachments: stop their containers first", name, len(k.living))
	}
	if k.network != nil {
		if err := a.collect(ctx, name, cnmplugin.Plugin.Name, listed, at(k.network.Driver, force)); err != nil {
			return err
		}
	}
	if k.pools != nil {
		if err := a.collect(ctx, name, cnmipam.Plugin.Name, listed, map[string]any{"ipam": at(k.pools.Driver, force)}); err != nil {
			return err
		}
	}
	if force && k.broken != nil {
		if err := a.forget(ctx, name); err != nil {
			return err
		}
	}
	k, err = a.requested(name)
	switch {
	case err != nil:
		return err
	case k.network != nil || k.pools != nil:
		return fmt.Errorf("network %s is not deleted: its drivers cannot be reached; see rm --force", name)
	case k.broken != nil:
		return fmt.Errorf("network %s is not deleted: the records of what its drivers were asked cannot be read; see rm --force: %w", name, k.broken)
	}
	return nil
}

// forget removes those files of a network that cannot be used.
func (a *app) forget(ctx context.Context, name string) error {
	s := remote.Open(a.paths.State)
	if err := forget[cnmplugin.Network](ctx, s, remote.Networks, name); err != nil {
		return err
	}
	return forget[cnmipam.State](ctx, s, remote.Pools, name)
}

func forget[T any](ctx context.Context, s *remote.Dir, kind, name string) error {
	unlock, err := s.Lock(ctx, kind, name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err = remote.Load[T](s, kind, name); errors.Is(err, remote.ErrBroken) { // the file may have changed before forget held the lock
		err = s.Remove(kind, name)
	}
	return err
}

// at returns the part of a configuration that names a driver.
func at(e cnm.DriverAddr, force bool) map[string]any {
	conf := map[string]any{"keepNetwork": false, "keepPool": false, "delIgnoreUnreachable": force}
	if e.Name != "" {
		conf["driver"] = e.Name
		return conf
	}
	conf["url"], conf["tls"] = e.URL, e.TLS
	return conf
}

func (a *app) collect(ctx context.Context, name, pluginType string, listed time.Time, conf map[string]any) error {
	maps.Copy(conf, map[string]any{
		"cniVersion": spec.Current, "name": name, "type": pluginType, "cni.dev/valid-attachments": []spec.AttachmentKey{}, clock.ListedKey: listed,
	})
	data, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(Plugins())
		s.Paths, s.Stderr = a.paths, a.stderr
		return s
	}}
	_, err = b.Invoke(ctx, pluginType, &spec.Call{Verb: spec.GC, Path: []string{"/nonexistent"}, Config: data})
	return err
}
