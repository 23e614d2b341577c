// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// scripted is a driver of every interface that notes its requests and gives a scripted
// answer.
type scripted struct {
	got    any
	answer string
}

// say decodes the answer.
func say[T any](d *scripted, got any) (*T, error) {
	d.got = got
	var e errorBody
	if err := json.Unmarshal([]byte(d.answer), &e); err == nil && e.Err+e.Error != "" {
		return nil, errors.New(e.Err)
	}
	out := new(T)
	return out, json.Unmarshal([]byte(d.answer), out)
}

func (d *scripted) do(got any) error {
	_, err := say[Empty](d, got)
	return err
}

func (d *scripted) Capabilities(context.Context) (*Capabilities, error) {
	return say[Capabilities](d, nil)
}
func (d *scripted) CreateNetwork(_ context.Context, in *CreateNetworkRequest) error { return d.do(in) }
func (d *scripted) DeleteNetwork(_ context.Context, in *NetworkRequest) error       { return d.do(in) }
func (d *scripted) CreateEndpoint(_ context.Context, in *CreateEndpointRequest) (*CreateEndpointResponse, error) {
	return say[CreateEndpointResponse](d, in)
}
func (d *scripted) DeleteEndpoint(_ context.Context, in *EndpointRequest) error { return d.do(in) }
func (d *scripted) EndpointOperInfo(_ context.Context, in *EndpointRequest) (*EndpointInfo, error) {
	return say[EndpointInfo](d, in)
}
func (d *scripted) Join(_ context.Context, in *JoinRequest) (*JoinResponse, error) {
	return say[JoinResponse](d, in)
}
func (d *scripted) Leave(_ context.Context, in *EndpointRequest) error { return d.do(in) }
func (d *scripted) ProgramExternalConnectivity(_ context.Context, in *ConnectivityRequest) error {
	return d.do(in)
}
func (d *scripted) RevokeExternalConnectivity(_ context.Context, in *EndpointRequest) error {
	return d.do(in)
}
func (d *scripted) GwAllocCheck(_ context.Context, in *GwAllocCheckRequest) (*GwAllocCheckResponse, error) {
	return say[GwAllocCheckResponse](d, in)
}
func (d *scripted) AllocateNetwork(_ context.Context, in *AllocateNetworkRequest) (*AllocateNetworkResponse, error) {
	return say[AllocateNetworkResponse](d, in)
}
func (d *scripted) FreeNetwork(_ context.Context, in *NetworkRequest) error      { return d.do(in) }
func (d *scripted) DiscoverNew(_ context.Context, in *DiscoveryRequest) error    { return d.do(in) }
func (d *scripted) DiscoverDelete(_ context.Context, in *DiscoveryRequest) error { return d.do(in) }
func (d *scripted) IPAMCapabilities(context.Context) (*IPAMCapabilities, error) {
	return say[IPAMCapabilities](d, nil)
}
func (d *scripted) AddressSpaces(context.Context) (*AddressSpaces, error) {
	return say[AddressSpaces](d, nil)
}
func (d *scripted) RequestPool(_ context.Context, in *RequestPoolRequest) (*RequestPoolResponse, error) {
	return say[RequestPoolResponse](d, in)
}
func (d *scripted) ReleasePool(_ context.Context, in *ReleasePoolRequest) error { return d.do(in) }
func (d *scripted) RequestAddress(_ context.Context, in *RequestAddressRequest) (*RequestAddressResponse, error) {
	return say[RequestAddressResponse](d, in)
}
func (d *scripted) ReleaseAddress(_ context.Context, in *ReleaseAddressRequest) error {
	return d.do(in)
}

// callTyped calls the client's method of an exchange with its request decoded.
func callTyped(t *testing.T, c *Client, e exchange) (any, error) {
	t.Helper()
	service, name, _ := strings.Cut(e.method, ".")
	if service == ImplementsIPAM {
		switch name {
		case "GetCapabilities":
			name = "IPAMCapabilities"
		case "GetDefaultAddressSpaces":
			name = "AddressSpaces"
		}
	}
	name = strings.TrimPrefix(name, "Get")
	fn := reflect.ValueOf(c).MethodByName(name)
	if !fn.IsValid() {
		t.Fatalf("%s: the client has no method %s", e.at, name)
	}
	args := []reflect.Value{reflect.ValueOf(t.Context())}
	if fn.Type().NumIn() == 2 {
		in := reflect.New(fn.Type().In(1).Elem())
		if err := json.Unmarshal([]byte(e.body), in.Interface()); err != nil {
			t.Fatalf("%s: %v", e.at, err)
		}
		args = append(args, in)
	}
	out := fn.Call(args)
	err, _ := out[len(out)-1].Interface().(error)
	if len(out) == 1 {
		return Empty{}, err
	}
	return out[0].Interface(), err
}

func driverText(t *testing.T, err error) string {
	t.Helper()
	var d *DriverError
	if !errors.As(err, &d) {
		t.Fatal(err)
	}
	return d.Text
}
