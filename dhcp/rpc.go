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

// service is what a server serves: a Keeper, or a test's.
type service interface {
	Allocate(context.Context, *dhcprpc.Args) (*spec.Result, error)
	Check(context.Context, *dhcprpc.Args) (*spec.Result, error)
	Release(context.Context, *dhcprpc.Args) error
	Collect(context.Context, *dhcprpc.Args) error
	Move(context.Context, *dhcprpc.Args) error
}

// server serves a keeper to plugins, the reference's or ours: Go's net/rpc with gob over HTTP
// CONNECT on a unix socket.
type server struct {
	keeper service
	log    func(string, ...any) // hears of connections that use another protocol
	ctx    context.Context      // of all connections
}

// serve accepts connections until l is closed, and then ends every connection and its calls.
// It survives a shortage of file descriptors.
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

// handshakeTime limits the time before the first call.
const handshakeTime = 10 * time.Second

func (s *server) connection(conn net.Conn) {
	defer conn.Close()                                                      //nolint:errcheck // no call is open
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()               //nolint:errcheck // as above
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil { // closed already
		return
	}
	r := bufio.NewReader(conn)
	if err := handshake(conn, r); err != nil {
		if !errors.Is(err, io.EOF) { // a client that checked whether we listen
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
	r      *bufio.Reader // has what the client sent with the handshake
	hungUp func()
}

// Read notices that the client has disconnected, since net/rpc reads the next call while a
// method works.
func (l *line) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if err != nil {
		l.hungUp()
	}
	return n, err
}

// maxHeaders limits what a client sends before the first call.
const maxHeaders = 100

// handshake answers CONNECT.
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

// calling is what net/rpc calls, one for each connection: ctx ends when the client
// disconnects, which net/rpc tells no method.
type calling struct {
	server *server
	ctx    context.Context
}

// Allocate is Keeper.Allocate.
func (c *calling) Allocate(a *dhcprpc.Args, out *Result) error {
	return c.guard(dhcprpc.Allocate, func() error { return out.set(c.server.keeper.Allocate(c.ctx, a)) })
}

// Check is Keeper.Check.
func (c *calling) Check(a *dhcprpc.Args, out *Result) error {
	return c.guard(dhcprpc.Check, func() error { return out.set(c.server.keeper.Check(c.ctx, a)) })
}

// Release is Keeper.Release.
func (c *calling) Release(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Release, func() error { return c.server.keeper.Release(c.ctx, a) })
}

// Collect is Keeper.Collect.
func (c *calling) Collect(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Collect, func() error { return c.server.keeper.Collect(c.ctx, a) })
}

// Move is Keeper.Move.
func (c *calling) Move(a *dhcprpc.Args, _ *struct{}) error {
	return c.guard(dhcprpc.Move, func() error { return c.server.keeper.Move(c.ctx, a) })
}

// guard calls the keeper. A panic fails one call and does not end the upkeep of every lease.
// An error without a text would pass for success.
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

// Result is the reference's for gob, which identifies fields by their names. The version is
// left to the caller, as in the reference's daemon.
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
