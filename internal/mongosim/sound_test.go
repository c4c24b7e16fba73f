package mongosim

import "fmt"

// sound checks that the indexes of a collection say exactly what its documents say.
func (c *collection) sound() error {
	entries := map[string]int{}
	bytes := int64(0)
	var err error
	c.records.ascend(bound[int64]{}, bound[int64]{}, func(id int64, doc []byte) bool {
		bytes += int64(len(doc))
		if err = checkDocument(doc); err != nil {
			return false
		}
		for _, x := range c.indexes {
			keys, kErr := x.keys(doc)
			if kErr != nil {
				err = kErr
				return false
			}
			seen := map[string]bool{}
			for _, k := range keys {
				if !x.unique {
					k += fmt.Sprint(id) // only to count
				} else if got, ok := x.entries.get(k); !ok || got != id {
					err = fmt.Errorf("index %s: record %d is not found under its key", x.name, id)
					return false
				}
				if !seen[k] {
					seen[k] = true
					entries[x.name]++
				}
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if bytes != c.bytes {
		return fmt.Errorf("%d bytes of documents are counted as %d", bytes, c.bytes)
	}
	for _, x := range c.indexes {
		if x.entries.size != entries[x.name] {
			return fmt.Errorf("index %s has %d entries, the documents have %d", x.name, x.entries.size, entries[x.name])
		}
	}
	return nil
}
