// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"errors"
	"fmt"
	"testing"

	"github.com/docker/go-plugins-helpers/network"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// helped is a driver made with the types and the server of docker/go-plugins-helpers, as most
// drivers are. Its errors are HTTP 500.
type helped struct {
	t *testing.T
	d *cnmtest.Driver
}

func (h *helped) GetCapabilities() (*network.CapabilitiesResponse, error) {
	return &network.CapabilitiesResponse{Scope: network.LocalScope}, nil
}

func (h *helped) CreateNetwork(in *network.CreateNetworkRequest) error {
	return h.d.CreateNetwork(h.t.Context(), cnmtest.As[cnm.CreateNetworkRequest](h.t, in))
}

func (h *helped) AllocateNetwork(*network.AllocateNetworkRequest) (*network.AllocateNetworkResponse, error) {
	return nil, errors.New("no swarm")
}

func (h *helped) DeleteNetwork(in *network.DeleteNetworkRequest) error {
	return h.d.DeleteNetwork(h.t.Context(), cnmtest.As[cnm.NetworkRequest](h.t, in))
}

func (h *helped) FreeNetwork(*network.FreeNetworkRequest) error { return nil }

func (h *helped) CreateEndpoint(in *network.CreateEndpointRequest) (*network.CreateEndpointResponse, error) {
	out, err := h.d.CreateEndpoint(h.t.Context(), cnmtest.As[cnm.CreateEndpointRequest](h.t, in))
	if err != nil {
		return nil, err
	}
	return cnmtest.As[network.CreateEndpointResponse](h.t, out), nil
}

func (h *helped) DeleteEndpoint(in *network.DeleteEndpointRequest) error {
	return h.d.DeleteEndpoint(h.t.Context(), cnmtest.As[cnm.EndpointRequest](h.t, in))
}

func (h *helped) EndpointInfo(in *network.InfoRequest) (*network.InfoResponse, error) {
	out, err := h.d.EndpointOperInfo(h.t.Context(), cnmtest.As[cnm.EndpointRequest](h.t, in))
	if err != nil {
		return nil, err
	}
	return cnmtest.As[network.InfoResponse](h.t, out), nil
}

func (h *helped) Join(in *network.JoinRequest) (*network.JoinResponse, error) {
	out, err := h.d.Join(h.t.Context(), cnmtest.As[cnm.JoinRequest](h.t, in))
	if err != nil {
		return nil, err
	}
	return cnmtest.As[network.JoinResponse](h.t, out), nil
}

func (h *helped) Leave(in *network.LeaveRequest) error {
	return h.d.Leave(h.t.Context(), cnmtest.As[cnm.EndpointRequest](h.t, in))
}

func (h *helped) DiscoverNew(*network.DiscoveryNotification) error    { return nil }
func (h *helped) DiscoverDelete(*network.DiscoveryNotification) error { return nil }

func (h *helped) ProgramExternalConnectivity(in *network.ProgramExternalConnectivityRequest) error {
	return h.d.ProgramExternalConnectivity(h.t.Context(), cnmtest.As[cnm.ConnectivityRequest](h.t, in))
}

func (h *helped) RevokeExternalConnectivity(in *network.RevokeExternalConnectivityRequest) error {
	return h.d.RevokeExternalConnectivity(h.t.Context(), cnmtest.As[cnm.EndpointRequest](h.t, in))
}

// TestGoPluginsHelpers attaches two containers with a driver made with Docker's own library. They
// reach each other by IPv4 and IPv6. The driver's errors reach the user. A repeated DEL takes
// nothing from another container.
func TestGoPluginsHelpers(t *testing.T) {
	d := &cnmtest.Driver{}
	l := newLab(t, d)
	cnmtest.StartHelped(t, "helped", network.NewHandler(&helped{t, d}))
	conf := `"driver":"helped","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]},
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/24"}],[{"subnet":"fd85::/64"}]]}`
	a, b := l.Pod("a", conf).Add(), l.Pod("b", conf).Add()
	l.bothWays(a, b)
	endpointtest.Must(t, a.Do(spec.Check))
	endpointtest.Must(t, a.Do(spec.Status))
	for range 2 {
		endpointtest.Must(t, b.Do(spec.Del))
		l.Want("endpoints", fmt.Sprint(d.Endpoints()), "1")
		endpointtest.Must(t, a.Do(spec.Check))
	}
	d.Forget()
	l.Fails(a.Do(spec.Check), "HTTP status 500: unknown network")
	endpointtest.Must(t, b.Do(spec.Add)) // creates the network again
	for range 2 {
		endpointtest.Must(t, a.Do(spec.Del))
	}
	c := l.Pod("c", conf).Add()
	l.bothWays(c, b)
	for _, p := range []*endpointtest.Pod{b, c, b, c} {
		endpointtest.Must(t, p.Do(spec.Del))
	}
	l.clean("after DEL")
}

// bothWays checks that two containers reach each other by IPv4 and IPv6.
func (l *lab) bothWays(a, b *endpointtest.Pod) {
	l.Helper()
	l.port++
	for n := range 2 {
		for _, way := range [][2]*endpointtest.Pod{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			at := endpointtest.Join(to.IP(n), fmt.Sprint(l.port))
			to.Serve("tcp", at)
			l.Want(from.Name+" to "+to.Name, from.Ask("tcp", at), to.Name+" "+from.IP(n))
		}
	}
}
