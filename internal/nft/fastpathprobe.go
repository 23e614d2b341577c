// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
)

// ErrNoFastPath means that the kernel has no flowtables.
var ErrNoFastPath = errors.New("the kernel has no flowtables (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)")

// TryFastPath returns ErrNoFastPath if the kernel lacks what EnsureFastPath needs. TryFastPath makes a
// flowtable, and a rule that adds flows to it, in a transaction without an end, as nft --check does. The
// kernel loads the modules, answers, and applies nothing. If our flowtable exists, that is the answer.
func (c *Conn) TryFastPath() error {
	have, err := c.readFastPath()
	if err != nil || have.flowtable {
		return err
	}
	msgs, err := encode(func(enc *nftables.Conn) error {
		t := enc.AddTable(&nftables.Table{Name: TableName + "-probe", Family: nftables.TableFamilyINet})
		enc.AddFlowtable(flowtable(t))
		chain := enc.AddChain(&nftables.Chain{Name: chainFastPath, Table: t})
		enc.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: offload()})
		return nil
	})
	if err != nil {
		return err
	}
	batch := wrap(msgs)
	end := len(batch) - 1
	sent, err := c.nl.send(batch[:end])
	if err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	var errno syscall.Errno
	err = c.answers(append(sent, batch[end]))
	if errors.As(err, &errno) && (errno == syscall.ENOENT || errno == syscall.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoFastPath, errno)
	}
	return err
}
