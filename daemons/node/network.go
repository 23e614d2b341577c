// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// configure completes the network and writes its file if its bytes differ. In containerd 2, a change
// of the file during a slow ADD makes all other pods wait, so the file contains nothing that changes
// often.
func (a *Agent) configure(n *podnet.Network) (err error) {
	path := filepath.Join(a.opts.ConfDir, podnet.File)
	n.Further = a.opts.Networks.Further
	if n.Pool, err = a.pool(path, n.Node); err != nil {
		return err
	}
	changed, err := durable.Update(path, n.Text(), 0o644, podnet.IsOurs)
	if errors.Is(err, durable.ErrForeign) {
		return fmt.Errorf("%w: move it away", err)
	}
	if changed && err == nil {
		a.opts.Log("network %s: %s written", cmp.Or(n.Pool.Name, podnet.Name), path)
	}
	return err
}

// pool returns the name under which the pods' addresses are reserved. It decides only once, because
// the network's file keeps the answer. If the node's pods have another network, ours takes over
// that network's name and addresses (docs/adr/0055). Then no address is given out twice. The
// runtime calls the new network also to remove old pods, and so frees their addresses.
func (a *Agent) pool(path string, own []netip.Prefix) (podnet.Pool, error) {
	data, err := durable.ReadConf(path)
	switch {
	case err == nil && podnet.IsOurs(data):
		return podnet.PoolOf(data), nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return podnet.Pool{}, err
	}
	return a.former(own)
}

// former returns the name and the addresses of the network that the node's pods have.
func (a *Agent) former(own []netip.Prefix) (p podnet.Pool, err error) {
	if _, data := a.preferred(); data != nil {
		p = podnet.PoolOf(data)
	}
	if p.DataDir != "" {
		return p, nil
	}
	dir := a.opts.Paths.Pools()
	found, err := reserved(dir, own)
	switch {
	case err != nil:
		return podnet.Pool{}, err
	case len(found) == 0 || slices.Contains(found, p.Name):
		return p, nil
	case len(found) > 1:
		return podnet.Pool{}, fmt.Errorf("%s: the networks %s all have addresses of this node's podCIDRs, and new pods could get one that is in use: remove the directories of those that have no pods",
			dir, strings.Join(found, ", "))
	}
	return podnet.Pool{Name: found[0]}, nil
}

// reserved returns the networks that have reserved addresses of this node's podCIDRs. The name in the
// old network's file need not be among them. The file may be gone, or may be that of a plugin such as
// Multus, which calls the pods' network itself.
func reserved(dir string, own []netip.Prefix) (found []string, err error) {
	networks, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, n := range networks {
		addrs, err := os.ReadDir(filepath.Join(dir, n.Name()))
		if err == nil && slices.ContainsFunc(addrs, func(e fs.DirEntry) bool { return within(own, e.Name()) }) {
			found = append(found, n.Name())
		}
	}
	return found, nil
}

// within reports whether a file of host-local reserves an address within one of the prefixes.
func within(own []netip.Prefix, file string) bool {
	a, err := netip.ParseAddr(file)
	return err == nil && slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
}

// preferred returns the file of another network that a runtime uses instead of ours, because its
// name sorts first.
func (a *Agent) preferred() (path string, data []byte) {
	entries, err := os.ReadDir(a.opts.ConfDir)
	if err != nil {
		return "", nil // configure reports it
	}
	for _, e := range entries {
		path := filepath.Join(a.opts.ConfDir, e.Name())
		if e.Name() >= podnet.File || !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(path)) {
			continue
		}
		if data, err := durable.ReadConf(path); err == nil && !podnet.IsOurs(data) {
			return path, data
		}
	}
	return "", nil
}
