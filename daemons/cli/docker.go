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
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
)

const dockerLong = `Makes CNI networks available to Docker:

  docker network create -d patchbay --ipam-driver null -o cni.network=NAME NAME

systemd starts it when Docker uses its socket (patchbay-docker.socket), which must
exist before dockerd starts. If it is started by hand, it makes the socket
itself. Its state is below /var/lib/patchbay/docker.

patchbayd docker install puts this program into /usr/local/bin and its units into
/etc/systemd/system, and starts the socket. A second call updates them.
patchbayd docker uninstall removes them. Files from other packages are never overwritten.

patchbayd docker ps shows the endpoints with their published ports, which Docker
cannot show for external drivers. patchbayd docker gc shows what the driver
holds for containers and networks that are gone, and removes it with --apply,
whether or not a driver is running. patchbay gc --from docker calls it.`

// dockerCommand is `patchbayd docker`.
type dockerCommand struct {
	Socket   string        `long:"socket" value-name:"PATH" default:"/run/docker/plugins/patchbay.sock" description:"where to listen; the name of the file is the name of the driver"`
	Group    string        `long:"group" value-name:"GROUP" description:"group that may connect besides root; its members get the power of root"`
	Plugins  string        `long:"plugins" value-name:"DIR:DIR" default:"/opt/cni/bin" env:"CNI_PATH" description:"directories of CNI plugins"`
	ConfDir  string        `long:"conf-dir" value-name:"DIR" default:"/etc/cni/net.d" description:"directory of CNI configurations"`
	DataRoot string        `long:"data-root" value-name:"DIR" default:"/var/lib/docker" description:"Docker's data directory, from which names of containers are read"`
	Docker   string        `long:"docker" value-name:"URL" default:"unix:///var/run/docker.sock" description:"Docker's API, which is asked now and then for its networks; empty: never"`
	Timeout  time.Duration `long:"timeout" value-name:"TIME" default:"1m" description:"limit of one call; Docker itself waits for ever"`
	Grace    time.Duration `long:"grace" value-name:"TIME" default:"5m" description:"how old an object that Docker has forgotten must be to be removed"`

	JSON    bool         `long:"json" description:"ps, gc: print an array of objects"`
	GC      gcFlags      `group:"patchbayd docker gc"`
	Install installFlags `group:"patchbayd docker install, uninstall"`

	app *app
}

// Execute runs the driver until a signal ends the process.
func (c *dockerCommand) Execute(args []string) error {
	where := paths.Default()
	switch {
	case len(args) == 1 && args[0] == "ps":
		if !state.Used(where.State, "docker") {
			c.app.print("warning", errors.New("no driver has run on this host (patchbayd docker install installs it)"))
		}
		return docker.PS(os.Stdout, where.State, c.JSON)
	case len(args) == 1 && args[0] == "gc":
		return c.collect(os.Stdout)
	case len(args) == 1 && args[0] == "install":
		return newInstaller(c.Install, os.Stdout).install()
	case len(args) == 1 && args[0] == "uninstall":
		return newInstaller(c.Install, os.Stdout).uninstall(networksIn(where.State))
	case len(args) > 0:
		return usageError{fmt.Errorf("unknown command %q; use ps, gc, install, uninstall, or none for the driver itself", strings.Join(args, " "))}
	case c.Timeout <= 0 || c.Grace <= 0:
		return errors.New("timeout and grace must be more than 0")
	case c.Group != "" && activated():
		return errors.New("group: the socket is systemd's: set SocketGroup= and SocketMode=0660 there (systemctl edit patchbay-docker.socket)")
	}
	logger := log.New(c.app.log, "", log.LstdFlags)
	d, err := c.driver(logger)
	if err != nil {
		return err
	}
	unlock, err := lockDriver(c.app.ctx, filepath.Join(where.State, "docker"))
	if err != nil {
		return err
	}
	defer unlock()
	l, err := passedOr(c.newSocket)
	if err != nil {
		return err
	}
	logger.Printf("listening, plugins in %s", c.Plugins)
	go d.Keep(c.app.ctx)
	h := &cnm.Handler{Network: d, IPAM: d, Timeout: c.Timeout, Log: logCalls(logger), Others: map[string]cnm.Method{collectMethod: collector(d)}}
	return cnm.Serve(c.app.ctx, resident.PatientListener(l, log.Printf), h)
}

// failureTime is how long a driver that cannot start answers Docker with its error. After that
// the driver exits, and systemd starts it again.
const failureTime = 10 * time.Second

// serveFailure answers Docker's calls with the error why, if systemd has passed the socket of a
// driver that cannot start. Without an answer the calls would wait for ever. Docker has no
// timeout here. While Docker starts, it waits for these answers.
func (a *app) serveFailure(why error) {
	if n, err := passed(); n != 1 || err != nil {
		return
	}
	l, err := fromFD()
	if err != nil {
		a.print("error", err)
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, failureTime)
	defer cancel()
	if err := cnm.Serve(ctx, l, docker.Down(why)); err != nil {
		a.print("error", err)
	}
}

func (c *dockerCommand) driver(logger *log.Logger) (*docker.Driver, error) {
	return docker.New(docker.Options{
		Plugins: filepath.SplitList(c.Plugins), ConfDir: c.ConfDir, DataRoot: c.DataRoot, Docker: c.Docker, Paths: paths.Default(),
		Limit: c.Timeout * 3 / 4, Grace: c.Grace, Log: logger.Printf,
	})
}

// logCalls logs calls that failed or took more than a second.
func logCalls(logger *log.Logger) func(cnm.Call) {
	const long = time.Second
	return func(c cnm.Call) {
		if c.Err != nil || c.Took > long {
			logger.Printf("%s: %v after %v", c.Method, c.Err, c.Took.Round(time.Millisecond))
		}
	}
}

// newSocket makes the socket at which Docker finds the driver.
func (c *dockerCommand) newSocket() (net.Listener, error) {
	gid := -1
	if c.Group != "" {
		var err error
		if gid, err = groupID(c.Group); err != nil {
			return nil, err
		}
	}
	return cnm.ListenUnix(c.Socket, gid)
}

// groupID finds a group by name or number.
func groupID(name string) (int, error) {
	if gid, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}
