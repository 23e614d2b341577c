// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// work is the state of one request.
type work struct {
	r      *plugin.Request
	conf   *Conf
	state  *remote.Dir
	env    *netstate.Env
	client *cnm.Client
	caps   *cnm.Capabilities
	keeper *cnmipam.Keeper // nil unless IPAM is a Docker driver too
	away   error           // why the driver did not answer the end of an attachment

	net  *Network
	at   *remote.DriverState
	ipam *spec.Result      // result of another IPAM plugin or of cnm-ipam; nil if there is none
	want *cnm.Interface    // the interface that CreateEndpoint sends
	has  *cnm.Interface    // the endpoint's interface
	join *cnm.JoinResponse // the driver's answer to Join
	old  map[int]bool      // indexes of the links that the container had before the ADD
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf, err := decode(r)
	if err != nil {
		return nil, err
	}
	w := &work{r: r, conf: conf, state: remote.Of(r)}
	if err := w.newKeeper(); err != nil {
		return nil, err
	}
	if w.env, err = kernel.Of(r).Env(r); err != nil {
		return nil, err
	}
	if err := w.vacant(); err != nil {
		return nil, err
	}
	if r.Session.Dry != nil {
		return w.explain(ctx)
	}
	if err := w.state.Fresh(r, name, w.endEarlier(ctx)); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		w.greet, w.endOthers, w.addressesBefore, w.ensureNetwork, w.addresses, w.createEndpoint, w.attach, w.open, w.inform,
	} {
		if err := step(ctx); err != nil {
			return nil, remote.Error(err)
		}
	}
	return w.result()
}

// vacant returns an error if the container already has the interface.
func (w *work) vacant() error {
	links, err := w.env.Sandbox.LinkList()
	if err != nil {
		return fmt.Errorf("list links of the container: %w", err)
	}
	w.old = make(map[int]bool, len(links))
	for _, l := range links {
		w.old[l.Attrs().Index] = true
		if l.Attrs().Name == w.r.IfName {
			return spec.Errorf(spec.CodeInternal, "cnm: container %s has interface %s already", w.r.ContainerID, w.r.IfName)
		}
	}
	return nil
}

// greet finds the driver and asks for its capabilities.
func (w *work) greet(ctx context.Context) (err error) {
	if err := w.r.Step("activate"); err != nil {
		return err
	}
	if w.client, err = w.conf.Client(w.r); err != nil {
		return err
	}
	if err := remote.Ready(ctx, w.client, cnm.ImplementsNetwork); err != nil {
		return err
	}
	w.caps, err = w.client.Capabilities(ctx)
	if errors.Is(err, cnm.ErrNotImplemented) {
		w.caps, err = &cnm.Capabilities{Scope: cnm.ScopeLocal}, nil
	}
	if err == nil {
		w.away = nil // the driver answers again
	}
	return err
}

// addressesBefore asks an IPAM plugin that is not a Docker driver. It does so before the network
// is created, because it derives the network's pools from the addresses.
func (w *work) addressesBefore(ctx context.Context) (err error) {
	if w.conf.IPAM.Type != "" && w.keeper == nil {
		w.ipam, err = w.ipamAdd(ctx)
	}
	return err
}

func (w *work) ipamAdd(ctx context.Context) (*spec.Result, error) {
	out, err := w.r.IPAMAdd(ctx)
	if err == nil && len(out.IPs) == 0 {
		err = spec.Invalid("IPAM plugin returned missing IP config")
	}
	return out, err
}

// addresses asks an IPAM driver for the addresses. The driver's pools exist by now. If the ADD
// fails after this, the undo first ends what was begun at the network driver, and then gives the
// address back.
func (w *work) addresses(ctx context.Context) (err error) {
	if w.keeper != nil {
		if w.ipam, err = w.ipamAdd(ctx); err != nil {
			return errors.Join(err, w.state.Records.Remove(w.r.Network, w.r.Owner, name))
		}
	}
	w.r.Undo(func(ctx context.Context) error {
		_, err := w.end(ctx, w.at)
		return err
	})
	return nil
}

// open publishes the ports if the endpoint has a gateway.
func (w *work) open(ctx context.Context) error {
	if w.conf.Internal || !w.join.Gateway.IsValid() && !w.join.GatewayIPv6.IsValid() {
		return nil
	}
	opts, err := w.options(false)
	if err != nil {
		return err
	}
	w.at.Opened = true
	if err := w.step("program external connectivity"); err != nil {
		return err
	}
	err = w.client.ProgramExternalConnectivity(ctx, &cnm.ConnectivityRequest{
		NetworkID: w.at.NetworkID, EndpointID: w.at.EndpointID, Options: opts,
	})
	if errors.Is(err, cnm.ErrNotImplemented) {
		return nil
	}
	return err
}

// inform asks the driver for the endpoint's information. The plugin does not need it, but some
// drivers finish their work in that call. Like Docker, inform ignores an error that the driver
// answers. If the driver does not answer at all, inform returns an error.
func (w *work) inform(ctx context.Context) error {
	if err := w.r.Step("endpoint information"); err != nil {
		return err
	}
	_, err := w.client.EndpointOperInfo(ctx, w.id())
	return remote.Answered(w.r, err)
}

func (w *work) id() *cnm.EndpointRequest {
	return &cnm.EndpointRequest{NetworkID: w.at.NetworkID, EndpointID: w.at.EndpointID}
}

// step writes the attachment's record before the next step is taken.
func (w *work) step(what string) error {
	if err := w.r.Step(what); err != nil {
		return err
	}
	return w.state.Write(w.r.Network, name, w.at)
}

// explain lists the requests that an ADD would send to the driver. It cannot know the driver's
// answers.
func (w *work) explain(ctx context.Context) (*spec.Result, error) {
	if err := w.addressesBefore(ctx); err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { remote.Explain(w.r, format, args...) }
	say("%s NetworkDriver.CreateNetwork (once a network)", w.conf.driver())
	if w.keeper != nil {
		if _, err := w.r.IPAMAdd(ctx); err != nil {
			return nil, err
		}
	}
	say("%s NetworkDriver.CreateEndpoint, Join %s", w.conf.driver(), w.r.NetNS)
	w.r.Session.Dry(fmt.Sprintf("host: ip link set (the link the driver names) netns %s name %s", w.r.NetNS, w.r.IfName))
	return w.compile(), nil
}
