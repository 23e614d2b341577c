// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// careful prepares a DEL or GC. These verbs must work with any configuration, or with none.
func careful(r *plugin.Request) (*work, error) {
	w := &work{r: r, state: remote.Of(r), conf: new(Conf)}
	if err := r.Decode(w.conf); err != nil {
		kernel.Warn(r, err)
	}
	k := kernel.Of(r)
	host, err := k.Host()
	w.env = &netstate.Env{NFT: k.NFT, Host: host, Warn: func(err error) { kernel.Warn(r, err) }}
	return w, err
}

// del ends the attachment at the driver, and then gives the addresses back. If the driver cannot
// be reached, the driver's endpoint still has the addresses, so they stay allocated. DEL succeeds
// all the same, and a later ADD or GC of the network ends the endpoint.
func del(ctx context.Context, r *plugin.Request) error {
	w, err := careful(r)
	if err != nil {
		return err
	}
	a, torn := w.state.ReadLocked(r, name)
	if a == nil { // the interface may still exist and carry our mark
		a = w.derived(&remote.DriverState{Owner: r.Owner})
	}
	if r.NetNS != "" {
		a.NetNS = r.NetNS
	}
	end := w.end
	if a.ContainerID == "" && !torn {
		end = w.endUnrecorded
	}
	done, err := end(ctx, a)
	if err != nil || !done {
		return err
	}
	return w.releaseIPAM(ctx)
}

// unrecordedTime limits how long a DEL without a record tries to reach the driver.
const unrecordedTime = 10 * time.Second

// endUnrecorded ends an attachment that has no record. Usually the driver has nothing to end: the
// DEL is repeated, or the ADD failed early. The driver has something to end only if the record
// was lost. So if the driver cannot be reached, endUnrecorded writes no record for later:
// otherwise every container that could not start would leave one.
func (w *work) endUnrecorded(ctx context.Context, a *remote.DriverState) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, unrecordedTime)
	defer cancel()
	w.conf.DelIgnoreUnreachable = true
	return w.end(ctx, a)
}

func (w *work) releaseIPAM(ctx context.Context) error {
	if w.r.Head.IPAM.Type == "" {
		return nil
	}
	return w.r.IPAM(ctx, spec.Del)
}

// derived returns what an ADD may have asked of the driver. It is for an attachment whose record
// is lost or cannot be read. Its ids are derived from names, so derived can compute them.
func (w *work) derived(a *remote.DriverState) *remote.DriverState {
	if have := w.requested(); have != nil {
		a.Driver, a.NetworkID = have.Driver, have.Request.NetworkID
		a.EndpointID = remote.ID(a.NetworkID, string(a.Owner))
		a.Created, a.Joined, a.Opened = true, true, true
	}
	return a
}

// end undoes, in reverse order, what the record of an attachment lists. Then it removes the
// record. If the driver cannot be reached, the record stays, and done is false.
func (w *work) end(ctx context.Context, a *remote.DriverState) (done bool, err error) {
	unreached, err := w.endAtDriver(ctx, a)
	if err != nil {
		return false, err
	}
	return w.done(unreached), w.finish(a, unreached)
}

func (w *work) done(unreached error) bool {
	return w.conf.DelIgnoreUnreachable || !cnm.Unanswered(unreached)
}

func (w *work) finish(a *remote.DriverState, unreached error) error {
	return w.state.Finish(w.r, name, a, unreached, w.conf.DelIgnoreUnreachable)
}

// endAndRelease works like end, for an earlier attachment that an ADD or a GC finds. It gives the addresses
// back before it removes the record, because without the record no later call would know them.
func (w *work) endAndRelease(ctx context.Context, a *remote.DriverState) (done bool, err error) {
	unreached, err := w.endAtDriver(ctx, a)
	if done = err == nil && w.done(unreached); done {
		err = w.release(ctx, a)
	}
	if err != nil {
		return false, err
	}
	return done, w.finish(a, unreached)
}

func (w *work) endEarlier(ctx context.Context) func(*remote.DriverState) error {
	return func(a *remote.DriverState) error {
		_, err := w.endAndRelease(ctx, a)
		return err
	}
}

// release gives back the addresses of an attachment of the network.
func (w *work) release(ctx context.Context, a *remote.DriverState) error {
	if w.r.Head.IPAM.Type == "" || a.ContainerID == "" {
		return nil
	}
	call := *w.r.Call
	call.Verb, call.ContainerID, call.IfName, call.NetNS, call.Args = spec.Del, a.ContainerID, a.IfName, "", ""
	conf, err := spec.ParseObject(call.Config)
	if err != nil {
		return err
	}
	conf.Delete("prevResult", "runtimeConfig")
	if call.Config, err = conf.JSON(); err != nil {
		return err
	}
	_, err = w.r.Session.Invoke(ctx, w.r.Head.IPAM.Type, &call)
	return err
}

// endOthers ends the attachments that earlier DELs could not end, now that the driver answers.
func (w *work) endOthers(ctx context.Context) error {
	w.state.EndOthers(w.r, name, w.endEarlier(ctx))
	return nil
}

// endAtDriver makes Docker's calls in reverse order: it calls Revoke and Leave, moves the link
// back to the host, and calls DeleteEndpoint. If the driver could not be asked, unreached says
// why. An error that the driver answers becomes a warning. err is an error of this program.
func (w *work) endAtDriver(ctx context.Context, a *remote.DriverState) (unreached, err error) {
	id := &cnm.EndpointRequest{NetworkID: a.NetworkID, EndpointID: a.EndpointID}
	c, unreached := w.reach(a)
	if c != nil && unreached == nil {
		w.state.MarkEnded(w.r, name, a)
	}
	if a.Opened && unreached == nil {
		unreached = w.ended(c.RevokeExternalConnectivity(ctx, id))
	}
	if a.Joined && unreached == nil {
		unreached = w.ended(c.Leave(ctx, id))
	}
	if err := w.bringBack(a); err != nil {
		kernel.Warn(w.r, err)
	}
	var refused error
	if a.Created && unreached == nil {
		refused = c.DeleteEndpoint(ctx, id)
		unreached = w.ended(refused)
	}
	w.away = unreached
	if unreached != nil && !w.conf.DelIgnoreUnreachable {
		return unreached, nil // until the driver can be reached, the link keeps our mark
	}
	unknown := unreached != nil || refused != nil || a.Link == nil
	return unreached, tidy(w.env.Host, a.Owner, a.Link, unknown)
}

// ended works like remote.Answered for a call that ends something. A driver that does not know
// the object has ended it.
func (w *work) ended(err error) error {
	if cnm.IsMissing(err) {
		return nil
	}
	return remote.Answered(w.r, err)
}

// reach returns a client of the driver. If there is nothing to ask, reach returns nil. If the
// driver has just failed to answer for another attachment, reach does not wait for the driver
// again.
func (w *work) reach(a *remote.DriverState) (c *cnm.Client, unreached error) {
	if !a.Opened && !a.Joined && !a.Created {
		return nil, nil
	}
	if w.away != nil {
		return nil, w.away
	}
	c, err := w.driverOf(a)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cnm.ErrUnreachable, err) // for example because its certificate is gone
	}
	return c, nil
}

func (w *work) driverOf(a *remote.DriverState) (*cnm.Client, error) {
	if w.client != nil {
		return w.client, nil
	}
	return w.conf.Recorded(w.r, a.Driver)
}

// bringBack moves the link out of the container, if the container still exists. bringBack finds
// the link by its mark, because the path in the record may now lead to another container.
func (w *work) bringBack(a *remote.DriverState) error {
	if a.NetNS == "" {
		return nil
	}
	sandbox, err := kernel.Of(w.r).Sandbox(a.NetNS)
	if err != nil {
		if netns.Gone(err) {
			return nil
		}
		return err
	}
	if own, err := sandbox.NS.IsCurrent(); err != nil || own {
		return err
	}
	env := *w.env
	env.Sandbox = sandbox
	to := remote.Link{Name: a.Owner.LinkName("cnm", 0)}
	if a.Link != nil {
		to = *a.Link
	}
	return giveBack(&env, a.Owner, to)
}

// gc ends the attachments that are no longer valid. If no attachment is left and keepNetwork is
// false, gc also deletes the network. The addresses of an attachment that could not be ended at the driver
// stay for the next GC.
func gc(ctx context.Context, r *plugin.Request) error {
	w, err := careful(r)
	if err != nil {
		return err
	}
	ok, err := w.state.Collect(r, name, func(a *remote.DriverState) error {
		if a.EndpointID == "" {
			a = w.derived(a)
		}
		done, err := w.endAndRelease(ctx, a)
		if !done {
			r.Spare(spec.AttachmentKey{ContainerID: a.ContainerID, IfName: a.IfName})
		}
		return err
	})
	errs := []error{err, r.IPAM(ctx, r.Verb)}
	if keep := w.conf.KeepNetwork; ok && keep != nil && !*keep {
		errs = append(errs, w.endNetwork(ctx))
	}
	return errors.Join(errs...)
}

// endNetwork gives the pools back and deletes the network, unless the network has attachments.
func (w *work) endNetwork(ctx context.Context) error {
	unlock, err := w.state.Lock(ctx, remote.Networks, w.r.Network)
	if err != nil {
		return err
	}
	defer unlock()
	if n, err := w.state.Members(w.r.Network, name); err != nil || n > 0 {
		return err
	}
	have := w.requested()
	if have == nil {
		return nil
	}
	if conf, err := decode(w.r); err == nil && conf.pools != nil {
		w.conf = conf
		if err := w.newKeeper(); err != nil {
			return err
		}
		if err := w.keeper.Release(ctx); err != nil {
			return err
		}
	}
	return w.deleteNetwork(ctx, have)
}

// outdated reports whether the driver made the network for other pools than the present ones. Two
// things change the pools: another IPAM configuration, and a GC that gave the pools back so that
// they were requested again. IPAM itself refuses another configuration while its pools are in
// use. A CNI IPAM plugin may give addresses of several subnets, but Docker's protocol has only
// the first. So with such a plugin, a network with attachments is never outdated.
func (w *work) outdated(ctx context.Context, have *Network) (bool, error) {
	was := have.Request
	switch {
	case w.keeper != nil:
		v4, v6, err := w.pools(ctx, was.Options)
		return err == nil && same(v4, v6) != same(was.IPv4Data, was.IPv6Data), err
	case w.ipam != nil:
		now := append(derive(w.ipam.IPs, true, true), derive(w.ipam.IPs, false, true)...)
		if slices.Equal(prefixes(now), prefixes(slices.Concat(was.IPv4Data, was.IPv6Data))) {
			return false, nil
		}
		n, err := w.state.Members(w.r.Network, name)
		return n == 0, err
	}
	return false, nil
}

// pools returns the recorded pools. It asks the IPAM driver only if the record has no pools,
// lacks one of them, or belongs to another configuration.
func (w *work) pools(ctx context.Context, opts cnm.Options) (v4, v6 []cnm.IPAMData, err error) {
	if s := w.keeper.Given(); s != nil {
		v4, v6 = s.Data()
		return v4, v6, nil
	}
	return w.data(ctx, opts)
}

// same returns a text that is equal for equal pools.
func same(v4, v6 []cnm.IPAMData) string {
	return remote.Hash([][]cnm.IPAMData{append([]cnm.IPAMData{}, v4...), append([]cnm.IPAMData{}, v6...)})
}

func prefixes(data []cnm.IPAMData) (list []netip.Prefix) {
	for _, d := range data {
		list = append(list, d.Pool)
	}
	return list
}
