//! Writes a batch in parts: the whole of it first. A part that the database refuses for its content or size is halved,
//! down to the one message at fault. Pure; the caller decides about that message.

/// The rest of a batch, as slices that are written one after the other, in the batch's order.
#[derive(Debug)]
pub struct Parts<'b, T> {
    left: Vec<&'b [T]>,
    whole: usize,
}

impl<'b, T> Parts<'b, T> {
    pub fn of(batch: &'b [T]) -> Parts<'b, T> {
        Parts {
            left: if batch.is_empty() { Vec::new() } else { vec![batch] },
            whole: batch.len(),
        }
    }

    /// Whether a part should be tried with a short timeout ([`crate::Database::hurried`]): a part was refused, and
    /// other parts wait. A single message has the full timeout.
    pub fn hurries(&self, part: &[T]) -> bool {
        1 < part.len() && part.len() < self.whole
    }

    /// Puts a refused part back as two halves; `false`: it is a single message.
    pub fn halve(&mut self, part: &'b [T]) -> bool {
        if part.len() < 2 {
            return false;
        }
        let (first, rest) = part.split_at(part.len() / 2);
        self.left.extend([rest, first]);
        true
    }
}

impl<'b, T> Iterator for Parts<'b, T> {
    type Item = &'b [T];

    fn next(&mut self) -> Option<&'b [T]> {
        self.left.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a batch of which the database accepts no part that `is_refused`. Returns the written items in order, the
    /// items that failed alone, and the number of attempts.
    fn write(size: usize, is_refused: impl Fn(&[usize]) -> bool) -> (Vec<usize>, Vec<usize>, usize) {
        let batch: Vec<usize> = (0..size).collect();
        let (mut written, mut alone, mut tries) = (Vec::new(), Vec::new(), 0);
        let mut parts = Parts::of(&batch);
        while let Some(part) = parts.next() {
            tries += 1;
            assert_eq!(parts.hurries(part), ![1, size].contains(&part.len()));
            if !is_refused(part) {
                written.extend(part);
            } else if !parts.halve(part) {
                alone.extend(part);
            }
        }
        (written, alone, tries)
    }

    #[test]
    fn the_item_at_fault_is_found_and_the_rest_is_written_in_order() {
        for bad in 0..33 {
            let (written, alone, tries) = write(33, |part| part.contains(&bad));
            assert_eq!(alone, [bad]);
            assert_eq!(written, (0..33).filter(|one| *one != bad).collect::<Vec<_>>());
            assert!(tries <= 13, "{tries}");
        }
    }

    #[test]
    fn what_is_too_much_at_once_is_written_in_parts() {
        let (written, alone, tries) = write(100, |part| part.len() > 30);
        assert_eq!((written.len(), alone.len(), tries), (100, 0, 7));
        assert!(written.is_sorted());
        assert_eq!(write(0, |_| true), (vec![], vec![], 0));
        assert_eq!(write(3, |_| true), (vec![], vec![0, 1, 2], 5));
    }
}
