// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	policymirror "github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
)

// policyPlugin is the plugin whose records name the pods of addresses.
const policyPlugin = "policy"

// addrOwners has the owners of the addresses of this node's attachments, and from where these send.
type addrOwners struct {
	addrs    map[netip.Addr]owner.Key
	closures []enforce.Closure
	pods     map[string]string // by their links
}

// attachments reads the records of this node's attachments to which policies apply. If a record cannot
// be read, or if two have one address, what an ADD has closed stays closed. ok is false if the records
// cannot be listed.
func attachments(run string) (list []policies.Attached, of addrOwners, ok bool, err error) {
	store := record.New(run)
	defer store.Close()
	records, torn, err := store.ScanPlugin(policyPlugin)
	if err != nil {
		return nil, of, false, err
	}
	var errs []error
	for _, t := range torn {
		errs = append(errs, fmt.Errorf("%w; its pod stays closed: delete the pod", t.Err))
	}
	of = addrOwners{addrs: map[netip.Addr]owner.Key{}, pods: map[string]string{}}
	for _, r := range records {
		if r.Sends != nil {
			of.closures = append(of.closures, closureFor(r, r.Sends))
		}
		if r.Policed == nil {
			continue
		}
		list = append(list, attached(r.Policed))
		errs = append(errs, of.add(r))
	}
	return list, of, true, errors.Join(errs...)
}

func attached(p *record.Policed) policies.Attached {
	a := policies.Attached{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Addresses: p.Addrs}
	if p.Labels != nil {
		a.Labels = append(policy.Labels{}, policy.LabelsOf(p.Labels)...) // not nil
	}
	return a
}

// closureFor returns from where an attachment sends.
func closureFor(r *record.Record, p *record.Policed) enforce.Closure {
	return enforce.Closure{
		Link: p.Link, Port: p.Port, Addrs: p.Addrs,
		Comment: nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName),
	}
}

// add notes a record's links and addresses.
func (k *addrOwners) add(r *record.Record) (err error) {
	k.closures = append(k.closures, closureFor(r, r.Policed))
	if r.Policed.Link != "" {
		k.pods[r.Policed.Link] = r.Policed.Namespace + "/" + r.Policed.Name
	}
	for _, addr := range r.Policed.Addrs {
		if other, exists := k.addrs[addr]; exists && other != r.Owner {
			err = fmt.Errorf("two attachments have the address %s, one of them %s/%s: `patchbay gc --apply` removes the dead one", addr, r.Policed.Namespace, r.Policed.Name)
			k.addrs[addr] = "" // no owner
			continue
		}
		k.addrs[addr] = r.Owner
	}
	return err
}

// reclose closes this node's pods as their ADDs did, where policies select them and the kernel does not
// enforce them.
func reclose(ctx context.Context, p paths.Paths, fw *nft.Conn) error {
	store := record.New(p.Run)
	defer store.Close()
	records, _, err := store.ScanPlugin(policyPlugin)
	errs := []error{err}
	for _, r := range records {
		if r.Policed == nil {
			continue
		}
		pod := policymirror.Pod{Namespace: r.Policed.Namespace, Name: r.Policed.Name, UID: r.Policed.UID}
		d, _ := policymirror.ReadAgain(p, pod, r.Policed.Early) // after an error it isolates
		closure := closureFor(r, r.Policed)
		closure.Close = enforce.Closes(&d)
		_, err := enforce.Reclose(ctx, fw, closure)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// watchAttachments calls changed when an ADD or DEL changes a record, until ctx ends.
func watchAttachments(ctx context.Context, p paths.Paths, changed func()) error {
	if err := durable.MakeDir(p.Run, claim.Attachments); err != nil {
		return err
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	defer w.Close() //nolint:errcheck // nothing was written
	root := filepath.Join(p.Run, claim.Attachments)
	if err := w.Add(root); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	networks, err := os.ReadDir(root)
	for _, n := range networks {
		err = errors.Join(err, watchNetwork(w, filepath.Join(root, n.Name())))
	}
	if err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	if err := eachEvent(ctx, w, changed, func(e fsnotify.Event) error { return noticed(w, root, e, changed) }); err != nil {
		return fmt.Errorf("watch records: %w", err)
	}
	return nil
}

// eachEvent calls noticed for each event of files until ctx ends, and changed at first and when events may be lost.
func eachEvent(ctx context.Context, w *fsnotify.Watcher, changed func(), noticed func(fsnotify.Event) error) error {
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			if changed(); !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
		case e := <-w.Events:
			if err := noticed(e); err != nil {
				return err
			}
		}
	}
}

// noticed handles an event. A new network's directory may have records before it is watched.
func noticed(w *fsnotify.Watcher, root string, e fsnotify.Event, changed func()) error {
	if filepath.Dir(e.Name) == root {
		if !e.Has(fsnotify.Create) {
			return nil
		}
		defer changed()
		return watchNetwork(w, e.Name)
	}
	if strings.HasSuffix(e.Name, "."+policyPlugin) && !e.Has(fsnotify.Chmod) {
		changed()
	}
	return nil
}

// watchNetwork watches a network's records. The directory may have gone with its last record.
func watchNetwork(w *fsnotify.Watcher, dir string) error {
	if err := w.Add(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
