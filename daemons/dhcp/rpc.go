// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/spec"
)

// service is what a server serves: a Keeper, or a fake in tests.
type service interface {
	Allocate(context.Context, *dhcprpc.Args) (*spec.Result, error)
	Check(context.Context, *dhcprpc.Args) (*spec.Result, error)
	Release(context.Context, *dhcprpc.Args) error
	Collect(context.Context, *dhcprpc.Args) error
	Move(context.Context, *dhcprpc.Args) error
}

// server serves a keeper to the plugin dhcp. The plugin may be the reference's or ours. The
// protocol is Go's net/rpc with gob, over HTTP CONNECT on a unix socket.
type server struct {
	keeper service
	log    func(string, ...any) // logs connections that use another protocol
	ctx    context.Context      // the context of all connections
}

// serve accepts connections until l is closed. Then it ends every connection and its calls. If
// there is no free file descriptor, serve waits and continues.
func serve(l net.Listener, k service, log func(string, ...any)) error {
	ctx, stop := context.WithCancel(context.Background())
	s := &server{keeper: k, log: log, ctx: ctx}
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	l = resident.PatientListener(l, log)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connection: %w", err)
		}
		work.Go(func() { s.connection(conn) })
	}
}

// handshakeTime limits the time that a client takes for the handshake.
const handshakeTime = 10 * time.Second

func (s *server) connection(conn net.Conn) {
	defer conn.Close()                                                      //nolint:errcheck // no call is in progress
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()               //nolint:errcheck // as above
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil { // the connection is closed already
		return
	}
	r := bufio.NewReader(conn)
	if err := handshake(conn, r); err != nil {
		if !errors.Is(err, io.EOF) { // a client sends EOF if it only checks whether a keeper listens
			s.log("handshake: %v", err)
		}
		return
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	ctx, hungUp := context.WithCancel(s.ctx)
	defer hungUp()
	calls := rpc.NewServer()
	if err := calls.RegisterName(dhcprpc.Service, &calling{server: s, ctx: ctx}); err != nil {
		s.log("serve calls: %v", err)
		return
	}
	calls.ServeConn(&line{Conn: conn, r: r, hungUp: hungUp})
}

// line is a connection after the handshake.
type line struct {
	net.Conn
	r      *bufio.Reader // also returns what the client sent together with the handshake
	hungUp func()
}

// Read notices when the client disconnects: net/rpc reads the next call while a method is still
// working.
func (l *line) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if err != nil {
		l.hungUp()
	}
	return n, err
}

// maxHeaders limits how many header lines a client may send.
const maxHeaders = 100

// handshake reads and answers the CONNECT request.
func handshake(w io.Writer, r *bufio.Reader) error {
	first, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if got := strings.TrimRight(string(first), "\r\n"); got != dhcprpc.Handshake {
		_, err := io.WriteString(w, "HTTP/1.0 405 must CONNECT\n\n")
		return errors.Join(fmt.Errorf("unexpected request %.80q", got), err)
	}
	for range maxHeaders {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if strings.TrimRight(string(line), "\r\n") == "" {
			_, err := fmt.Fprintf(w, "HTTP/1.0 %s\r\n%s: 1\r\n\r\n", dhcprpc.Connected, dhcprpc.Mark)
			return err
		}
	}
	return errors.New("too many headers")
}

// calling has the methods that net/rpc calls. net/rpc does not tell a method when the client
// disconnects. So each connection has its own calling, whose ctx ends then.
type calling struct {
	server *server
	ctx    context.Context
}

// Allocate calls Keeper.Allocate.
func (c *calling) Allocate(a *dhcprpc.Args, out *Result) error {
	return c.guard(dhcprpc.Allocate, func() error { return out.set(c.server.keeper.Allocate(c.ctx, a)) })
}

// Check calls Keeper.Check.
func (c *calling) Check(a *dhcprpc.Args, out *Result) error {
	return c.guard(dhcprpc.Check, func() error { return out.set(c.server.keeper.Check(c.ctx, a)) })
}

// Release calls Keeper.Release.
func (c *calling) Release(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Release, func() error { return c.server.keeper.Release(c.ctx, a) })
}

// Collect calls Keeper.Collect.
func (c *calling) Collect(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Collect, func() error { return c.server.keeper.Collect(c.ctx, a) })
}

// Move calls Keeper.Move.
func (c *calling) Move(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Move, func() error { return c.server.keeper.Move(c.ctx, a) })
}

// guard calls the keeper. If the keeper panics, only this call fails, and the keeper continues to
// renew leases. guard gives a text to an error without one, because net/rpc would take that error
// for success.
func (c *calling) guard(name string, call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.server.log("%s panicked: %v", name, v)
			err = fmt.Errorf("%s panicked: %v", name, v)
		}
	}()
	if err = call(); err != nil && err.Error() == "" {
		return errors.New("unknown error")
	}
	return err
}

// Result has the fields of the reference's result, because gob finds fields by their names. Like
// the reference's daemon, the keeper sets no version; the caller does.
type Result struct {
	IPs    []*ipConfig
	Routes []*route
	DNS    spec.DNS
}

type (
	ipConfig struct {
		Address net.IPNet
		Gateway net.IP
	}
	route struct {
		Dst      net.IPNet
		GW       net.IP
		MTU      int
		AdvMSS   int
		Priority int
		Table    *int
		Scope    *int
	}
)

func (out *Result) set(r *spec.Result, err error) error {
	if err != nil {
		return err
	}
	out.DNS = r.DNS
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, &ipConfig{Address: *nl.IPNet(ip.Address), Gateway: ip.Gateway.AsSlice()})
	}
	for _, r := range r.Routes {
		out.Routes = append(out.Routes, &route{Dst: *nl.IPNet(r.Dst), GW: r.GW.AsSlice(), MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope})
	}
	return nil
}
