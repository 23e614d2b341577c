// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"context"
	"errors"
	"net"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// check compares the container with the previous result. It also asks whether the driver still
// knows the endpoint.
func check(ctx context.Context, r *plugin.Request) error {
	ipam := r.IPAM(ctx, r.Verb)
	return spec.Join(ipam, checkOwn(ctx, r))
}

// checkOwn does the work of CHECK without that of the IPAM plugin.
func checkOwn(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	if r.Prev() == nil {
		return spec.Invalid("cnm: Required prevResult missing")
	}
	w := &work{r: r, conf: conf, state: remote.Of(r)}
	if w.at, err = w.state.Read(r, name); err != nil {
		return err
	}
	if w.at == nil || w.at.Ended {
		return spec.Errorf(spec.CodeInternal, "cnm: no endpoint of the driver is known for container %s", r.ContainerID)
	}
	if w.env, err = kernel.Of(r).Env(r); err != nil {
		return err
	}
	state, err := w.expected()
	if err != nil {
		return err
	}
	if err := kernel.Check(ctx, w.env, state); err != nil {
		return err
	}
	return w.checkDriver(ctx)
}

// expected returns the state that the container's interfaces have according to the previous result.
func (w *work) expected() (s netstate.State, err error) {
	prev := w.r.Prev()
	for n, i := range prev.Interfaces {
		if i.Sandbox == "" || w.at.Link != nil && i.Name != w.r.IfName {
			continue // the interface is on the host, or another plugin made it
		}
		h := handover{To: i.Name}
		if i.Mac != "" {
			if h.MAC, err = net.ParseMAC(i.Mac); err != nil {
				return nil, spec.Errorf(spec.CodeDecoding, "interface %s in prevResult: %w", i.Name, err)
			}
		}
		var ips []spec.IPConfig
		for _, ip := range prev.IPs {
			if ip.Interface == nil || *ip.Interface == n {
				ips = append(ips, ip)
			}
		}
		s = append(s, h)
		s = append(s, configure(i.Name, ips, prev.Routes)...)
	}
	if len(s) == 0 && w.at.Link != nil {
		return nil, spec.Errorf(spec.CodeInvalidConfig, "prevResult has no interface %s of the container", w.r.IfName)
	}
	return s, nil
}

func (w *work) checkDriver(ctx context.Context) error {
	c, err := w.conf.Recorded(w.r, w.at.Driver)
	if err != nil {
		return err
	}
	if _, err := c.EndpointOperInfo(ctx, w.id()); err != nil && !errors.Is(err, cnm.ErrNotImplemented) {
		return remote.Error(err)
	}
	return nil
}

// status reports whether an ADD could work now: the driver and the IPAM plugin must answer.
func status(ctx context.Context, r *plugin.Request) error {
	conf, err := decode(r)
	if err != nil {
		return err
	}
	w := &work{r: r, conf: conf}
	if err := w.greet(ctx); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "%w", err)
	}
	return r.IPAM(ctx, r.Verb)
}
