// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// member is an etcd with one member, in this process. It has no HTTP, and no port for other
// members.
type member struct {
	etcd   *etcdserver.EtcdServer
	fronts []*grpc.Server
}

// socketName is the name of the socket, in the server's directory, for the processes of this
// host.
const socketName = "socket"

// startTimeout is how long a server may take to read its files and to elect itself.
const startTimeout = time.Minute

// start starts a server on the files of a directory. It listens on a socket there, and on the
// TLS address of listen if that is set.
func start(ctx context.Context, dir string, listen *Options) (s *member, err error) {
	quietOnce()
	s = new(member)
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	failures := &failure{first: make(chan error, 1)}
	if err := s.read(ctx, memberConfig(dir, failures), failures); err != nil {
		return s, fmt.Errorf("start etcd on the files of %s: %w: if they are damaged, move that directory away and start again: the hosts write again what they know, and networks must be created again", dir, err)
	}
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // left by a server that was killed
		return s, err
	}
	if err := s.serve("unix", path, nil); err != nil || listen == nil {
		return s, err
	}
	return s, s.serve("tcp", listen.Endpoints[0], &tls.Config{GetConfigForClient: listen.TLS.serverConfig, MinVersion: tls.VersionTLS12})
}

// memberConfig returns settings for a small node: the data is a few MB, and each host has a
// copy of it.
func memberConfig(dir string, failures *failure) config.ServerConfig {
	const name = "one"
	self := types.MustNewURLs([]string{"http://127.0.0.1:2380"}) // no process listens there
	return config.ServerConfig{
		Name: name, DataDir: dir, PeerURLs: self, ClientURLs: self,
		InitialPeerURLsMap: types.URLsMap{name: self}, InitialClusterToken: "patchbay", NewCluster: true,
		SnapshotCount: 1000, SnapshotCatchUpEntries: 100, MaxSnapFiles: 2, MaxWALFiles: 2,
		TickMs: 50, ElectionTicks: 5, InitialElectionTickAdvance: true,
		AutoCompactionMode: "revision", AutoCompactionRetention: 1024, // how many past changes a watch may begin at
		QuotaBackendBytes: 512 << 20, BootstrapDefragThresholdMegabytes: 16,
		MaxTxnOps: 128, MaxRequestBytes: 1536 << 10, MaxConcurrentStreams: math.MaxUint32,
		AuthToken: "simple", TokenTTL: 300, V2Deprecation: config.V2DeprDefault, Metrics: "basic", MaxLearners: 1,
		ServerFeatureGate: features.NewDefaultServerFeatureGate(name, nil),
		Logger:            zap.New(zapcore.NewNopCore(), zap.WithFatalHook(failures), zap.WithPanicHook(failures)),
	}
}

// failure turns a fatal error of etcd into an error, while etcd starts. After that, a fatal
// error ends the process, and systemd starts the service again.
type failure struct {
	first   chan error
	running atomic.Bool
}

// OnWrite implements zapcore.CheckWriteHook. zap calls it even for a logger without output.
func (f *failure) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, field := range fields {
		if why, ok := field.Interface.(error); ok {
			err = fmt.Errorf("%s: %w", e.Message, why)
		}
	}
	if f.running.Load() {
		panic(fmt.Errorf("etcd: %w", err))
	}
	select {
	case f.first <- err:
	default: // an earlier failure is already there
	}
	runtime.Goexit()
}

// read waits until the server has read its files and accepts requests.
func (s *member) read(ctx context.Context, c config.ServerConfig, failures *failure) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	made := make(chan *etcdserver.EtcdServer, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				failures.first <- fmt.Errorf("%v", p)
			}
		}()
		etcd, err := etcdserver.NewServer(c)
		if err != nil {
			failures.first <- err
			return
		}
		etcd.Start()
		<-etcd.ReadyNotify()
		made <- etcd
	}()
	select {
	case s.etcd = <-made:
		failures.running.Store(true)
		return nil
	case err := <-failures.first:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serve listens at an address. A client may send a ping every 5 seconds, as every etcd allows.
func (s *member) serve(network, address string, conf *tls.Config) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return fmt.Errorf("serve the store: %w", err)
	}
	front := v3rpc.Server(s.etcd, conf, nil, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}))
	s.fronts = append(s.fronts, front)
	go front.Serve(l) //nolint:errcheck // it returns when stop is called
	return nil
}

// stop ends all calls, and closes the files.
func (s *member) stop() {
	for _, front := range s.fronts {
		front.Stop()
	}
	if s.etcd != nil {
		s.etcd.Stop()
	}
}

// Cluster is the name of the cluster in a host's own store. The hosts that it serves use it
// too.
const Cluster = "hosts"

// agentWaits is how long the agent waits for a command that serves the store. It is longer than
// a command may take.
const agentWaits = 30 * time.Second

// openLocal opens the store in a directory of this host. The process that holds the lock of the
// store serves it to the other processes. This process is the agent, or a command while no agent runs.
// Only one command runs at a time, so that no command depends on another.
func openLocal(ctx context.Context, dir string, agent bool, listen *Options) (s *Engine, err error) {
	at := filepath.Join(dir, "etcd")
	if err := durable.MakeDir(dir, "etcd"); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	if s, err = connect(Options{Endpoints: []string{"unix://" + filepath.Join(at, socketName)}, Cluster: Cluster}); err != nil {
		return nil, err
	}
	if err = s.serveLocal(ctx, at, agent, listen); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", dir, err), s.Close())
	}
	return s, nil
}

// serveLocal starts the server, unless the agent is serving the store.
func (s *Engine) serveLocal(ctx context.Context, at string, agent bool, listen *Options) error {
	wait := agentWaits
	if !agent {
		unlock, err := durable.Lock(ctx, filepath.Join(at, "turn"))
		if err != nil {
			return err
		}
		s.closed = append(s.closed, unlock)
		wait = 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, unix.EWOULDBLOCK)
	defer cancel()
	unlock, err := durable.Lock(ctx, filepath.Join(at, "lock"))
	if !agent && errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	s.closed = append(s.closed, unlock)
	own, err := start(context.WithoutCancel(ctx), at, listen)
	if err == nil {
		s.closed = append(s.closed, own.stop)
	}
	return err
}
