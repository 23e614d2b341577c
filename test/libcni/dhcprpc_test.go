// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/rpc"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/spec"
)

// DHCP is the reference's service, which net/rpc serves under this name.
type DHCP struct{ got *skel.CmdArgs }

func upstreamResult() current.Result {
	link, table := 253, 100
	return current.Result{
		CNIVersion: "1.0.0",
		IPs: []*current.IPConfig{
			{Address: net.IPNet{IP: net.IPv4(10, 0, 0, 7), Mask: net.CIDRMask(24, 32)}, Gateway: net.IPv4(10, 0, 0, 1)},
			{Address: net.IPNet{IP: net.ParseIP("fd00::7"), Mask: net.CIDRMask(128, 128)}},
		},
		Routes: []*types.Route{
			{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IPv4(10, 0, 0, 1), Priority: 7, MTU: 1400, AdvMSS: 1300, Table: &table},
			{Dst: net.IPNet{IP: net.IPv4(10, 9, 0, 0), Mask: net.CIDRMask(16, 32)}, GW: net.IPv4zero, Scope: &link},
		},
		DNS: types.DNS{Nameservers: []string{"10.0.0.1", "10.0.0.2"}, Domain: "lan", Search: []string{"a.lan"}},
	}
}

// Allocate answers with a fixed result.
func (d *DHCP) Allocate(a *skel.CmdArgs, result *current.Result) error {
	d.got = a
	*result = upstreamResult()
	return nil
}

// Release fails.
func (d *DHCP) Release(*skel.CmdArgs, *struct{}) error { return errors.New("not today") }

func serve(t *testing.T) (*DHCP, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d := &DHCP{}
	srv := rpc.NewServer()
	if err := srv.Register(d); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(rpc.DefaultRPCPath, srv)
	s := &http.Server{Handler: mux}
	go s.Serve(l) //nolint:errcheck // ends with Close
	t.Cleanup(func() { s.Close() })
	return d, path
}

// Our client calls Go's own net/rpc and gob, which use upstream's types.
func TestUpstreamServer(t *testing.T) {
	d, path := serve(t)
	c, err := dhcprpc.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Ours {
		t.Error("the reference's daemon passes for ours")
	}
	want := &dhcprpc.Args{ContainerID: "c1", Netns: "/run/netns/x", IfName: "eth0", Args: "A=b", Path: "/opt", StdinData: bytes.Repeat([]byte("{}"), 5000)}
	for range 3 {
		got, err := c.Call(t.Context(), dhcprpc.Allocate, want)
		if err != nil {
			t.Fatal(err)
		}
		link, table := 253, 100
		wantResult := &spec.Result{
			CNIVersion: "1.0.0",
			IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.0.0.7/24"), Gateway: netip.MustParseAddr("10.0.0.1")},
				{Address: netip.MustParsePrefix("fd00::7/128")}},
			Routes: []spec.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.0.0.1"), Priority: 7, MTU: 1400, AdvMSS: 1300, Table: &table},
				{Dst: netip.MustParsePrefix("10.9.0.0/16"), GW: netip.MustParseAddr("0.0.0.0"), Scope: &link}},
			DNS: spec.DNS{Nameservers: []string{"10.0.0.1", "10.0.0.2"}, Domain: "lan", Search: []string{"a.lan"}},
		}
		if !reflect.DeepEqual(got, wantResult) {
			t.Errorf("%+v", got)
		}
		if g := d.got; g.ContainerID != "c1" || g.Netns != want.Netns || g.IfName != "eth0" || g.Args != "A=b" || g.Path != "/opt" || !bytes.Equal(g.StdinData, want.StdinData) {
			t.Errorf("the server got %+v", g)
		}
		if _, err := c.Call(t.Context(), dhcprpc.Release, want); err == nil || err.Error() != "error calling DHCP.Release: not today" {
			t.Errorf("release: %v", err)
		}
	}
	if _, err := c.Call(t.Context(), dhcprpc.Collect, want); err == nil || !strings.Contains(err.Error(), "can't find method") {
		t.Errorf("collect: %v", err)
	}
}
