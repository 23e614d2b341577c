// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
)

const dhcpLong = `Keeps DHCP leases for the plugin dhcp, Patchbay's or the reference's: it gets
addresses, renews them while the container's interface exists, and releases them.

systemd starts it when a plugin uses its socket (patchbay-dhcp.socket). If it is
started by hand, it makes the socket itself. The leases are in files below
/run/patchbay/dhcp, and a restarted keeper continues with them. The flags have
the names of the reference daemon's.`

// dhcpCommand is `patchbayd dhcp`.
type dhcpCommand struct {
	PidFile       string        `long:"pidfile" value-name:"FILE" description:"write the process id there (an absolute path)"`
	HostPrefix    string        `long:"hostprefix" value-name:"DIR" description:"where the host's root is mounted; put before the paths of socket and namespaces"`
	SocketPath    string        `long:"socketpath" value-name:"PATH" default:"/run/cni/dhcp.sock" description:"where to listen"`
	Broadcast     bool          `long:"broadcast" description:"ask servers to broadcast their answers"`
	Timeout       time.Duration `long:"timeout" value-name:"TIME" default:"10s" description:"how long to wait for the answer to one request"`
	ResendMax     time.Duration `long:"resendmax" value-name:"TIME" default:"62s" description:"the longest wait between two requests"`
	ResendTimeout time.Duration `long:"resendtimeout" value-name:"TIME" default:"208s" description:"how long an ADD tries"`
	Watch         time.Duration `long:"watch" value-name:"TIME" default:"30s" description:"how often an interface is checked"`
	Detach        bool          `long:"detach" description:"go into the background when the socket exists"`

	app *app
}

// Execute keeps the leases until a signal ends the process.
func (c *dhcpCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	switch {
	case c.PidFile != "" && !filepath.IsAbs(c.PidFile):
		return fmt.Errorf("Error writing pidfile %q: path not absolute", c.PidFile)
	case c.Timeout <= 0 || c.ResendMax <= 0 || c.ResendTimeout <= 0 || c.Watch <= 0:
		return errors.New("timeout, resendmax, resendtimeout and watch must be more than 0")
	case c.Detach:
		return c.detach()
	}
	l, err := listener(c.HostPrefix + c.SocketPath)
	if err != nil {
		return fmt.Errorf("Error getting listener: %w", err)
	}
	defer l.Close() //nolint:errcheck // the process ends
	if c.PidFile == "" {
		return c.serve(l)
	}
	if err := c.writePID(); err != nil {
		return err
	}
	return errors.Join(c.serve(l), os.Remove(c.PidFile))
}

func (c *dhcpCommand) writePID() error {
	if err := durable.Write(c.PidFile, []byte(strconv.Itoa(os.Getpid()))); err != nil {
		return fmt.Errorf("Error writing pidfile %q: %w", c.PidFile, err)
	}
	return os.Chmod(c.PidFile, 0o644)
}

// releaseTime limits how long a DEL waits until the release is sent.
const releaseTime = 2 * time.Second

func (c *dhcpCommand) serve(l net.Listener) error {
	logger := log.New(limited(c.app.log), "", log.LstdFlags)
	where := paths.Default()
	k, err := dhcp.New(dhcp.Options{
		RunDir: where.Run, Proc: where.Proc, HostPrefix: c.HostPrefix, Broadcast: c.Broadcast,
		Timeout: c.Timeout, ResendMax: c.ResendMax, ResendTimeout: c.ResendTimeout, Watch: c.Watch, ReleaseTime: releaseTime, Log: logger.Printf,
	})
	if err != nil {
		return err
	}
	cached, err := dhcp.ReadCache(filepath.Join(c.HostPrefix, where.CNI), c.SocketPath)
	if err != nil {
		logger.Print(err)
	}
	k.Adopt(cached)
	defer context.AfterFunc(c.app.ctx, func() { l.Close() })() //nolint:errcheck // Serve reports the error
	logger.Printf("keeping %d leases, listening on %s", k.Attachments(), l.Addr())
	return k.Serve(l)
}
