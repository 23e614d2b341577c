// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/spec"
)

// fake returns its arguments.
type fake struct{ ended chan struct{} }

func (f *fake) Allocate(ctx context.Context, a *dhcprpc.Args) (*spec.Result, error) {
	switch a.ContainerID {
	case "waits":
		<-ctx.Done()
		close(f.ended)
		return nil, ctx.Err()
	case "panics":
		panic("oh")
	}
	return &spec.Result{IPs: []spec.IPConfig{{Address: netip.MustParsePrefix("10.0.0.7/24"), Gateway: netip.MustParseAddr("10.0.0.1")}},
		DNS: spec.DNS{Domain: string(a.StdinData)}}, nil
}

func (f *fake) Check(context.Context, *dhcprpc.Args) (*spec.Result, error) {
	return nil, errors.New("")
}
func (f *fake) Release(context.Context, *dhcprpc.Args) error { return nil }
func (f *fake) Collect(context.Context, *dhcprpc.Args) error { return errors.New("no") }
func (f *fake) Move(context.Context, *dhcprpc.Args) error    { return nil }

// scarce is a listener without a file descriptor for the first connection.
type scarce struct {
	net.Listener
	tried bool
}

func (l *scarce) Accept() (net.Conn, error) {
	if !l.tried {
		l.tried = true
		return nil, os.NewSyscallError("accept4", unix.EMFILE)
	}
	return l.Listener.Accept()
}

func start(t *testing.T) (*fake, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{make(chan struct{})}
	done := make(chan error)
	go func() { done <- serve(&scarce{Listener: l}, f, t.Logf) }()
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // it ends serve
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, path
}

// Go's own client calls the keeper with upstream's types, as the reference's plugin does.
func TestUpstreamClient(t *testing.T) {
	_, path := start(t)
	c, err := rpc.DialHTTP("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the test ends
	result := &current.Result{CNIVersion: "1.1.0"}
	if err := c.Call(dhcprpc.Allocate, &skel.CmdArgs{ContainerID: "c", StdinData: []byte("x")}, result); err != nil {
		t.Fatal(err)
	}
	if got := result.IPs[0].Address.String() + " " + result.IPs[0].Gateway.String() + " " + result.DNS.Domain + " " + result.CNIVersion; got != "10.0.0.7/24 10.0.0.1 x 1.1.0" {
		t.Error(got)
	}
	if err := c.Call(dhcprpc.Release, &skel.CmdArgs{}, &struct{}{}); err != nil {
		t.Error(err)
	}
	for method, want := range map[string]string{dhcprpc.Check: "unknown error", dhcprpc.Collect: "no", "DHCP.Other": "rpc: can't find method DHCP.Other"} {
		if err := c.Call(method, &skel.CmdArgs{}, &struct{}{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", method, err)
		}
	}
	if err := c.Call(dhcprpc.Allocate, &skel.CmdArgs{ContainerID: "panics"}, result); err == nil || err.Error() != "DHCP.Allocate panicked: oh" {
		t.Error(err)
	}
}

// A plugin was killed. Its call at the keeper ends.
func TestHangUp(t *testing.T) {
	f, path := start(t)
	c, err := dhcprpc.Dial(t.Context(), path)
	if err != nil || !c.Ours {
		t.Fatalf("%+v, %v", c, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, dhcprpc.Allocate, &dhcprpc.Args{ContainerID: "waits"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	c.Close()
	select {
	case <-f.ended:
	case <-time.After(time.Minute):
		t.Error("the call goes on")
	}
}

func TestNoClient(t *testing.T) {
	_, path := start(t)
	for said, want := range map[string]string{"GET / HTTP/1.1\r\n\r\n": "HTTP/1.0 405", dhcprpc.Handshake + "\n" + strings.Repeat("a: b\n", 1000): "", "\n": "HTTP/1.0 405"} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, said)
		got, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("%.20q: %q", said, got)
		}
		conn.Close() //nolint:errcheck // the test
	}
}
