// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/cli/attached"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/plugin/ptp"
)

// hostRepairer restores what living attachments need on the host besides the firewall, and
// what went with another attachment of the same address.
type hostRepairer struct {
	k   *kernel.Kernel
	env *netstate.Env
	out *repaired
}

// host repairs all attachments. Those that took an address over from another one come
// first, so that the other one finds it taken.
func (c *repairCommand) host(ctx context.Context, out *repaired) error {
	s := c.app.session()
	defer s.Close()
	k := kernel.OfSession(s)
	conn, err := k.Host()
	if err != nil {
		return err
	}
	h := &hostRepairer{k: k, out: out}
	h.env = &netstate.Env{Host: conn, NFT: k.NFT, Warn: c.app.warn}
	list, _ := attached.New(k, c.app.paths.Proc).List(c.app.runtime(nil)) // doctor reports broken files
	order.Stable(list, func(a, b *attached.Attachment) int { return took(b) - took(a) })
	var errs []error
	for _, a := range list {
		for _, rec := range a.Records {
			if err := h.repair(ctx, a, rec); err != nil {
				errs = append(errs, fmt.Errorf("repair %s: %w", a.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

func took(a *attached.Attachment) (n int) {
	for _, r := range a.Records {
		n = max(n, len(r.Displaced))
	}
	return n
}

// repair locks the record only if something is missing, and then checks again.
func (h *hostRepairer) repair(ctx context.Context, a *attached.Attachment, listed *record.Record) error {
	if s, err := h.lacking(ctx, a, listed); len(s) == 0 || err != nil {
		return err
	}
	name := fmt.Sprintf("%s %s/%s", listed.Network, listed.ContainerID, listed.IfName)
	rec, ok, err := h.k.Records.TryTake(listed.Network, listed.Owner, listed.Plugin, settle)
	defer h.k.Records.Unlock(listed.Network, listed.Owner, listed.Plugin)
	if !ok {
		h.out.Skipped = append(h.out.Skipped, name+": an ADD or DEL is working on it")
	}
	if !ok || err != nil || rec == nil {
		return err
	}
	s, err := h.lacking(ctx, a, rec)
	if err != nil {
		return err
	}
	for _, o := range s {
		if err := h.make(ctx, name, o); err != nil {
			return err
		}
	}
	return nil
}

// lacking returns the missing objects, none if the attachment is dead.
func (h *hostRepairer) lacking(ctx context.Context, a *attached.Attachment, rec *record.Record) (netstate.State, error) {
	if state, _ := h.k.Life(rec); rec.NetNS == "" || state == life.Dead {
		return nil, nil
	}
	switch rec.Plugin {
	case ptp.Plugin.Name:
		return ptp.Lacking(h.env, rec, a.Result)
	case portmap.Plugin.Name:
		return portmap.Lacking(ctx, h.k, h.env, rec, a.Records)
	}
	return nil, nil
}

// make creates an object and reports it; where /proc/sys is not writable there is a
// warning instead.
func (h *hostRepairer) make(ctx context.Context, name string, o netstate.Object) error {
	if _, err := o.Ensure(ctx, h.env); err != nil {
		h.k.NFT.Discard()
		return err
	}
	if err := h.k.NFT.Commit(ctx); err != nil {
		return err
	}
	still, err := o.Diff(ctx, h.env)
	if err == nil && still == "" {
		h.out.Restored = append(h.out.Restored, name+": "+strings.TrimPrefix(o.String(), "host: "))
	}
	return err
}
