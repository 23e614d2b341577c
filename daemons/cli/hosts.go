// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/daemons/hosts"
	"github.com/patchbay-net/patchbay/daemons/hosts/store/etcd"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

const hostsLong = `Makes a CNI network span many hosts. Each host runs this agent, and all share one store.

  patchbayd hosts create NAME --subnet 10.200.0.0/16     once, on any host
  docker network create -d patchbay --ipam-driver null -o cni.network=NAME NAME     on each

The agent takes a block of addresses for this host, writes the network's
configuration, and maintains the routes to the other hosts. No container waits
for the agent or for the store. Its state is below /var/lib/patchbay/hosts.`

// usualConfDir is the default of --conf-dir.
const usualConfDir = "/etc/cni/net.d"

// hostsCommand is `patchbayd hosts`.
type hostsCommand struct {
	storeFlag
	Serve    string        `long:"serve" value-name:"ADDRESS[:PORT]?ca=FILE&cert=FILE&key=FILE[&names=NAME,NAME]" description:"serve the store of this host to other hosts, whose store is etcds://ADDRESS/hosts?ca=FILE&cert=FILE&key=FILE"`
	Address  []string      `long:"address" value-name:"ADDRESS" description:"address at which other hosts reach this one, at most one of each family (default: those of the interface with the default route)"`
	Name     string        `long:"name" value-name:"NAME" description:"name of this host (default: its hostname)"`
	TTL      time.Duration `long:"ttl" value-name:"TIME" default:"30s" description:"how long a host may be silent before it counts as gone"`
	Reclaim  time.Duration `long:"reclaim" value-name:"TIME" default:"24h" description:"how long a host must be gone before another may take its block, when no other is free; 10 minutes and 10 times the ttl at least"`
	Port     uint16        `long:"port" value-name:"PORT" default:"4789" description:"UDP port of the tunnel"`
	WirePort uint16        `long:"wireguard-port" value-name:"PORT" default:"51820" description:"UDP port of WireGuard, for encrypted networks"`
	ConfDir  string        `long:"conf-dir" value-name:"DIR" default:"/etc/cni/net.d" description:"where CNI configurations are written"`
	DNS      []string      `long:"dns" optional:"yes" optional-value:"*" value-name:"NETWORK" description:"answer for the names of containers, on the gateway addresses of a network, or of all"`
	Domain   string        `long:"domain" value-name:"DOMAIN" description:"also answer for NAME.NETWORK.DOMAIN"`
	Upstream []string      `long:"upstream" value-name:"ADDRESS[:PORT]" description:"DNS servers for all other names (default: those of /etc/resolv.conf)"`
	Listen   string        `long:"listen" value-name:"ADDRESS:PORT" description:"serve /metrics, /healthz and /readyz, such as on 127.0.0.1:9473 (default: do not)"`
	DataRoot string        `long:"data-root" value-name:"DIR" default:"/var/lib/docker" description:"Docker's data directory, from which names of containers are read"`

	Create hostsCreateCommand `command:"create" description:"add a network on all hosts"`
	Remove hostsRemoveCommand `command:"rm" description:"remove a network from all hosts"`
	List   hostsListCommand   `command:"ls" description:"show networks, hosts, blocks and endpoints"`
	Forget hostsForgetCommand `command:"forget" description:"release the blocks of a host that will not come back"`
	Leave  hostsLeaveCommand  `command:"leave" description:"remove this host from all networks, after the agent was stopped"`

	app *app
}

// newHostsCommand returns the command and gives its subcommands the flags that all share.
func newHostsCommand(a *app) *hostsCommand {
	c := &hostsCommand{app: a}
	c.service = serviceFile
	at := admin{a, &c.storeFlag}
	c.Create.admin, c.Remove.admin, c.List.admin, c.Forget.admin, c.Leave.admin = at, at, at, at, at
	c.Leave.hosts = c
	return c
}

// storeFlag names the store that all hosts share.
type storeFlag struct {
	Store string `long:"store" value-name:"URL" env:"PATCHBAY_STORE" description:"store of all hosts: etcd://HOST,HOST/CLUSTER, etcds://USER@HOST/CLUSTER?ca=FILE&cert=FILE&key=FILE, or file:///DIR for an etcd of this host's own (default: that of /etc/patchbay/hosts.env, or file:///var/lib/patchbay/hosts)"`

	service string // the path of hosts.env
}

// url returns the store's URL. It comes from the flag or, without a flag, from the service's file.
// If neither has one, url returns the URL of a store for this host alone.
func (f *storeFlag) url(where paths.Paths) (string, error) {
	if f.Store != "" {
		return f.Store, nil
	}
	s, err := readService(f.service)
	return cmp.Or(s.Store, "file://"+hosts.StateDir(where)), err
}

// Execute runs the agent until a signal ends the process.
func (c *hostsCommand) Execute(args []string) error {
	if len(args) > 0 {
		return usageError{terminal.UnknownCommand(c.app.parsed.Find("hosts"), args[0])}
	}
	logger := log.New(c.app.log, "", log.LstdFlags)
	opts, err := c.options(paths.Default(), logger.Printf)
	if err != nil {
		return err
	}
	unlock, err := lockAgent(c.app.ctx, hosts.StateDir(opts.Paths))
	if err != nil {
		return err
	}
	defer unlock()
	url, err := c.url(opts.Paths)
	if err != nil {
		return err
	}
	s, err := etcd.OpenAgent(c.app.ctx, url, c.Serve)
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // the process ends
	opts.Store = s
	fabric, err := mesh.Open(mesh.Options{
		Paths: opts.Paths, Wanted: hosts.StateDir(opts.Paths), Warn: func(err error) { logger.Print(err) },
		MakeKeys: func(ctx context.Context) (*mesh.Keys, error) { return wirekey.Open(ctx, hosts.KeyDir(opts.Paths)) },
	})
	if err != nil {
		return err
	}
	defer fabric.Close()
	opts.Fabric = fabric
	a, err := hosts.New(opts)
	if err != nil {
		return err
	}
	stop, err := serveHealth(c.Listen, a, logger)
	if err != nil {
		return err
	}
	defer stop()
	logger.Printf("this is host %s, %s", opts.Name, a.ID())
	if why := s.Exposed(); why != "" {
		logger.Print(why)
	}
	a.Run(c.app.ctx)
	return nil
}

func (c *hostsCommand) options(where paths.Paths, printLine func(string, ...any)) (o hosts.Options, err error) {
	o = hosts.Options{
		Name: c.Name, Port: c.Port, WirePort: c.WirePort, Paths: where, ConfDir: c.ConfDir, DataRoot: c.DataRoot,
		TTL: c.TTL, Reclaim: c.Reclaim, DNS: c.DNS, Domain: c.Domain, Log: printLine,
	}
	if least := hosts.LeastReclaim(c.TTL); c.Reclaim < least {
		return o, fmt.Errorf("read --reclaim: %v is too short, a living host could lose its block: it must be %v at least with a --ttl of %v", c.Reclaim, least, c.TTL)
	}
	for _, text := range c.Upstream {
		server, err := upstream(text)
		if err != nil {
			return o, err
		}
		o.Upstreams = append(o.Upstreams, server)
	}
	if o.Name == "" {
		if o.Name, err = os.Hostname(); err != nil {
			return o, fmt.Errorf("find the name of this host: %w", err)
		}
	}
	o.Underlay, err = addresses(c.Address)
	return o, err
}

// confDir returns the directory that the flag names. Without a flag, it returns the service's
// directory.
func (c *hostsCommand) confDir() (string, error) {
	if c.ConfDir != usualConfDir {
		return c.ConfDir, nil
	}
	s, err := readService(c.service)
	return cmp.Or(s.ConfDir, usualConfDir), err
}

// addresses parses the addresses at which other hosts reach this one.
func addresses(texts []string) (out []netip.Addr, err error) {
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("read --address: %w", err)
		}
		if !prefix.IsHost(addr) {
			return nil, fmt.Errorf("read --address: %s is no address of one host", addr)
		}
		for _, other := range out {
			if other.Is4() == addr.Is4() {
				return nil, errors.New("read --address: at most one of each family")
			}
		}
		out = append(out, addr)
	}
	return out, nil
}

// upstream parses the address of a DNS server.
func upstream(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		const port = 53
		return netip.AddrPortFrom(addr, port), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil {
		return server, fmt.Errorf("read --upstream: %w", err)
	}
	return server, nil
}

// serviceFile is the EnvironmentFile of patchbay-hosts.service. Commands read this file to find
// the store of the running agent.
const serviceFile = "/etc/patchbay/hosts.env"

// service holds the options in that file that the subcommands need.
type service struct {
	Store   string `long:"store"`
	ConfDir string `long:"conf-dir"`
}

// readService reads the file. If the file is missing, readService sets nothing. If the file
// cannot be read, readService returns an error: a command would otherwise use the default store,
// and find it empty.
func readService(path string) (s service, err error) {
	data, err := durable.ReadConf(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("find the store of this host: %w: name it with --store", err)
	}
	vars := readEnv(data)
	p := flags.NewParser(&s, flags.IgnoreUnknown)
	if _, err := p.ParseArgs(longFlags(strings.Fields(vars["PATCHBAY_HOSTS_OPTIONS"]))); err != nil { // systemd splits the variable in the same way
		return s, fmt.Errorf("%s: read PATCHBAY_HOSTS_OPTIONS: %w", path, err)
	}
	s.Store = cmp.Or(s.Store, vars["PATCHBAY_STORE"])
	return s, nil
}

// readEnv parses the format of an EnvironmentFile (systemd.exec(5)). Each line is KEY=VALUE,
// with or without quotes; # and ; begin a comment.
func readEnv(data []byte) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(string(bytes.ReplaceAll(data, []byte("\\\n"), nil))) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || line[0] == '#' || line[0] == ';' {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		out[strings.TrimSpace(key)] = value
	}
	return out
}
