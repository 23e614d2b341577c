// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"fmt"
	"os"
	"testing"

	helpers "github.com/docker/go-plugins-helpers/ipam"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/spec"
)

// helped is an IPAM driver made with the types and the server of docker/go-plugins-helpers, as
// most drivers are. Its errors are HTTP 500 with the key Err.
type helped struct {
	t *testing.T
	d *cnmtest.Driver
}

func (h *helped) GetCapabilities() (*helpers.CapabilitiesResponse, error) {
	return &helpers.CapabilitiesResponse{RequiresMACAddress: true}, nil
}

func (h *helped) GetDefaultAddressSpaces() (*helpers.AddressSpacesResponse, error) {
	return &helpers.AddressSpacesResponse{LocalDefaultAddressSpace: "l", GlobalDefaultAddressSpace: "g"}, nil
}

func (h *helped) RequestPool(in *helpers.RequestPoolRequest) (*helpers.RequestPoolResponse, error) {
	out, err := h.d.RequestPool(h.t.Context(), cnmtest.As[cnm.RequestPoolRequest](h.t, in))
	if err != nil {
		return nil, err
	}
	return cnmtest.As[helpers.RequestPoolResponse](h.t, out), nil
}

func (h *helped) ReleasePool(in *helpers.ReleasePoolRequest) error {
	return h.d.ReleasePool(h.t.Context(), cnmtest.As[cnm.ReleasePoolRequest](h.t, in))
}

func (h *helped) RequestAddress(in *helpers.RequestAddressRequest) (*helpers.RequestAddressResponse, error) {
	out, err := h.d.RequestAddress(h.t.Context(), cnmtest.As[cnm.RequestAddressRequest](h.t, in))
	if err != nil {
		return nil, err
	}
	return cnmtest.As[helpers.RequestAddressResponse](h.t, out), nil
}

func (h *helped) ReleaseAddress(in *helpers.ReleaseAddressRequest) error {
	return h.d.ReleaseAddress(h.t.Context(), cnmtest.As[cnm.ReleaseAddressRequest](h.t, in))
}

// TestGoPluginsHelpers gives addresses to our bridge from an IPAM driver made with Docker's own
// library. The driver's errors reach the user. What the driver forgot is requested again.
func TestGoPluginsHelpers(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{RequiresMAC: true}
	cnmtest.StartHelped(t, "helpedipam", helpers.NewHandler(&helped{t, d}))
	w := endpointtest.New(t, &bridge.Plugin, &Plugin)
	conf := `"bridge":"helped0","isGateway":true,"ipam":{"type":"cnm-ipam","driver":"helpedipam","pools":[{"subnet":"10.86.0.0/24"},{"subnet":"fd86::/64"}]}`
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf).Add()
	for n := range 2 {
		b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
		w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
	}
	must(t, a.Do(spec.Check))
	must(t, a.Do(spec.Status))
	c := w.Pod("c", conf+`,"runtimeConfig":{"ips":["`+a.IP(0)+`"]}`)
	c.Refused("IpamDriver.RequestAddress: HTTP status 500: address " + a.IP(0) + " is not available")
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "6")
	d.Forget()
	must(t, w.Pod("d", conf).Do(spec.Add)) // requests the pools again, and the addresses that are in use
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "8")
	for _, p := range []*endpointtest.Pod{a, b} {
		must(t, p.Do(spec.Del))
		must(t, p.Do(spec.Del))
	}
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "4")
}
