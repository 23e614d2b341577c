// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// ReleaseFact removes an owner from the holders of a shared fact. The last holder restores the host's sysctls
// that the fact changed, and then removes the elements: the guard of route_localnet stands until the sysctl has
// its earlier value.
func (k *Kernel) ReleaseFact(ctx context.Context, fact string, o owner.Key) error {
	return netstate.ReleaseFact(ctx, k.Records, fact, o, k.NFT, k.setBack)
}

// setBack restores the sysctls of a fact. setBack ignores an interface that is gone. It writes the
// sysctl, because the kernel then also forgets the routes of open connections. If /proc/sys is
// read-only, it sends a message instead.
func (k *Kernel) setBack(f record.Fact) error {
	if len(f.Before) == 0 {
		return nil
	}
	host, err := k.Host()
	if err != nil {
		return err
	}
	for key, value := range f.Before {
		err := host.SetSysctl(key, value)
		if errors.Is(err, nl.ErrReadOnly) || errors.Is(err, fs.ErrPermission) {
			err = setByMessage(host, key, value)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !nl.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func setByMessage(host *nl.Conn, key, value string) error {
	ifName, local := strings.CutSuffix(strings.TrimPrefix(key, "net/ipv4/conf/"), "/route_localnet")
	n, err := strconv.Atoi(value)
	if err != nil || !local {
		return fmt.Errorf("restore %s=%s: unknown setting", key, value)
	}
	link, err := host.Link(ifName)
	if err != nil {
		return err
	}
	return host.SetIPv4(link.Attrs().Index, nl.RouteLocalnet, int32(n))
}
