// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
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

// server serves a keeper to plugins, the reference's or ours, until it is closed: Go's net/rpc
// with gob over HTTP CONNECT on a unix socket. It is not net/rpc itself, which cannot tell a
// method that its client has disconnected.
type server struct {
	keeper service
	log    func(string, ...any)
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
}

// newServer returns a server. It logs connections that use another protocol.
func newServer(k service, log func(string, ...any)) *server {
	s := &server{keeper: k, log: log}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// serve accepts connections until l is closed. It survives a shortage of file descriptors.
func (s *server) serve(l net.Listener) error {
	l = resident.PatientListener(l, s.log)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connection: %w", err)
		}
		s.work.Go(func() { s.connection(conn) })
	}
}

// close ends every connection and its calls.
func (s *server) close() {
	s.stop()
	s.work.Wait()
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
	c := &caller{server: s, enc: gob.NewEncoder(conn)}
	if err := c.serve(r); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.log("call: %v", err)
	}
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

// caller is one connection after the handshake.
type caller struct {
	server *server
	mu     sync.Mutex // guards enc: answers come in any order
	enc    *gob.Encoder
	work   sync.WaitGroup
}

// request, response and cmdArgs are net/rpc's and skel's: gob identifies fields by their
// names.
type (
	request struct {
		ServiceMethod string
		Seq           uint64
	}
	response struct {
		ServiceMethod string
		Seq           uint64
		Error         string
	}
	cmdArgs struct {
		ContainerID, Netns, IfName, Args, Path string

		StdinData []byte
	}
)

// serve reads calls until the client disconnects, which ends its calls.
func (c *caller) serve(r io.Reader) error {
	ctx, hungUp := context.WithCancel(c.server.ctx)
	defer c.work.Wait()
	defer hungUp()
	dec := gob.NewDecoder(r)
	for {
		var head request
		if err := dec.Decode(&head); err != nil {
			return err
		}
		var args cmdArgs
		if err := dec.Decode(&args); err != nil {
			return err
		}
		c.work.Go(func() { c.call(ctx, head, &args) })
	}
}

func (c *caller) call(ctx context.Context, head request, args *cmdArgs) {
	body, err := c.server.method(ctx, head.ServiceMethod, &dhcprpc.Args{
		ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, Args: args.Args, Path: args.Path, Config: args.StdinData,
	})
	answer := response{ServiceMethod: head.ServiceMethod, Seq: head.Seq}
	if err != nil {
		answer.Error, body = err.Error(), struct{}{}
		if answer.Error == "" {
			answer.Error = "unknown error"
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.enc.Encode(answer), c.enc.Encode(body)); err != nil && ctx.Err() == nil {
		c.server.log("answer %s: %v", head.ServiceMethod, err)
	}
}

// method calls the keeper. A panic fails one call and does not end the upkeep of every
// lease.
func (s *server) method(ctx context.Context, name string, a *dhcprpc.Args) (body any, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log("%s panicked: %v", name, v)
			body, err = nil, fmt.Errorf("%s panicked: %v", name, v)
		}
	}()
	switch name {
	case dhcprpc.Allocate:
		return encode(s.keeper.Allocate(ctx, a))
	case dhcprpc.Check:
		return encode(s.keeper.Check(ctx, a))
	case dhcprpc.Release:
		return struct{}{}, s.keeper.Release(ctx, a)
	case dhcprpc.Collect:
		return struct{}{}, s.keeper.Collect(ctx, a)
	case dhcprpc.Move:
		return struct{}{}, s.keeper.Move(ctx, a)
	}
	return nil, fmt.Errorf("rpc: can't find method %.80s", name)
}

// The reference's result for gob, which identifies fields by their names. The version is
// left to the caller, as in the reference's daemon.
type (
	result struct {
		IPs    []*ipConfig
		Routes []*route
		DNS    spec.DNS
	}
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

func encode(r *spec.Result, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	out := &result{DNS: r.DNS}
	for _, ip := range r.IPs {
		out.IPs = append(out.IPs, &ipConfig{Address: *nl.IPNet(ip.Address), Gateway: ip.Gateway.AsSlice()})
	}
	for _, r := range r.Routes {
		out.Routes = append(out.Routes, &route{Dst: *nl.IPNet(r.Dst), GW: r.GW.AsSlice(), MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority, Table: r.Table, Scope: r.Scope})
	}
	return out, nil
}
